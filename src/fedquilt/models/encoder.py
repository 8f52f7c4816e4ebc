"""Text encoders of the ``transformers`` library with a head on top (extra ``hf``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.split import Split, check_counts, check_switch
from fedquilt.models.weights.files import check_content
from fedquilt.models.weights.hub import library, pretrained


class TextEncoder(Split):
    """A pretrained encoder, the mean of its last layer over the tokens that are not padding, and a head.

    f = sum_t m_t h_t / sum_t m_t with m_t = 1 where the id is not padding. A pooler of the encoder's own,
    which this does not use, is left out.

    Args:
        folder: A local folder in the form of transformers, or a name on its hub.
        length: Tokens in each row.
        frozen: The encoder is not trained, not sent, and stays in evaluation mode; only the head learns.
        pad: The id of padding; by default the one in the encoder's settings.
        content: A fingerprint of the folder; other weights are refused.

    Reference: Reimers and Gurevych, Sentence-BERT, 2019, arXiv:1908.10084.

    Example:
        >>> model = TextEncoder("folder/of/the/encoder", length=32, classes=4)  # doctest: +SKIP
    """

    ids = True

    def __init__(
        self,
        folder: str,
        length: int = 64,
        classes: int = 2,
        frozen: bool = True,
        pad: int | None = None,
        content: str | None = None,
    ) -> None:
        check_counts(length=length, classes=classes)
        check_switch(frozen=frozen)
        if not isinstance(folder, str) or not folder:
            raise InputError(f"folder must be a folder or a name on the hub, got {folder!r}.")
        check_content(folder, content)
        features = _Pooled(_encoder(folder), pad, frozen)
        most = getattr(features.encoder.config, "max_position_embeddings", None)
        if isinstance(most, int) and 0 < most < length:
            raise InputError(f"The encoder {folder!r} takes at most {most} tokens, got length {length}.")
        super().__init__(features, nn.Linear(int(features.encoder.config.hidden_size), classes), (length,))
        if frozen:
            self.frozen = ("features.encoder",)


class _Pooled(nn.Module):
    def __init__(self, encoder: Any, pad: int | None, frozen: bool) -> None:
        super().__init__()
        found = getattr(encoder.config, "pad_token_id", None) if pad is None else pad
        if isinstance(found, bool) or not isinstance(found, int):
            raise InputError(f"Which id is padding? The encoder's settings say {found!r}. Give it as pad.")
        self.encoder, self.pad, self.still = encoder, found, frozen
        if frozen:
            encoder.requires_grad_(False)
            encoder.eval()

    def train(self, mode: bool = True) -> _Pooled:
        super().train(mode)
        if self.still:
            self.encoder.eval()  # no dropout in what does not learn
        return self

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids != self.pad
        try:
            with torch.no_grad() if self.still else nullcontext():
                states = self.encoder(input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state
        except IndexError as error:
            raise InputError(
                f"Token ids must be from 0 to {self.encoder.config.vocab_size - 1}, got ids from {int(ids.min())} to "
                f"{int(ids.max())}. Tokenise with the folder's own tokeniser, fedquilt.models.tokenise."
            ) from error
        share = mask.unsqueeze(-1).to(states.dtype)
        vector: Tensor = (states * share).sum(1) / share.sum(1).clamp(min=1.0)
        return vector


def tokenise(texts: Sequence[str], folder: str, length: int = 64) -> np.ndarray:
    """Token ids of each text, int64 [texts, length]: cut or padded to the length by the folder's own tokeniser."""
    check_counts(length=length)
    wrong = [t for t in texts if not isinstance(t, str)] if not isinstance(texts, str) else [texts]
    if wrong:
        raise InputError(f"tokenise takes a list of strings, got {wrong[0]!r}{' alone' if wrong == [texts] else ''}.")
    tokenizer = pretrained("AutoTokenizer", folder)
    if not len(texts):
        return np.zeros((0, length), np.int64)
    ids = tokenizer(list(texts), padding="max_length", truncation=True, max_length=length)["input_ids"]
    return np.asarray(ids, dtype=np.int64)


def _encoder(folder: str) -> Any:
    if torch.get_default_device().type == "meta":  # only sizes are asked for
        model = library().AutoModel.from_config(pretrained("AutoConfig", folder), trust_remote_code=False)
    else:
        model = pretrained("AutoModel", folder, use_safetensors=True, dtype=torch.float32)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
