"""Networks for token ids: a convolutional text classifier and recurrent next-character models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.split import Split, check_choice, check_counts, check_share


class TokenEmbedding(nn.Embedding):
    """An embedding that says which ids it has when it is asked for another."""

    def forward(self, input: Tensor) -> Tensor:
        """One vector for each id."""
        try:
            return super().forward(input)
        except IndexError as error:
            low, high = int(input.min()), int(input.max())
            raise InputError(
                f"Token ids must be from 0 to {self.num_embeddings - 1} (vocab is {self.num_embeddings}), got ids from "
                f"{low} to {high}. Give the vocabulary's size as vocab."
            ) from error


class TextCNN(Split):
    """Embedding, parallel convolutions over 3, 4 and 5 tokens, ReLU, maximum over time, dropout.

    Id 0 is padding: its vector is zero and stays so. 3,355,104 parameters for a vocabulary of 25,000 and 4 classes.

    Args:
        vocab: How many token ids there are.
        width: Numbers in a token's vector.
        maps: Of each convolution.
        spans: How many tokens each convolution sees.
        dropout: Before the head.

    Reference: Kim, Convolutional Neural Networks for Sentence Classification, 2014, arXiv:1408.5882.

    Example:
        >>> import torch
        >>> TextCNN(length=16, vocab=100)(torch.zeros(2, 16, dtype=torch.long)).shape
        torch.Size([2, 4])
    """

    ids = True

    def __init__(
        self,
        length: int = 128,
        classes: int = 4,
        vocab: int = 25_000,
        width: int = 128,
        maps: int = 100,
        spans: Sequence[int] = (3, 4, 5),
        dropout: float = 0.5,
    ) -> None:
        check_counts(length=length, classes=classes, vocab=vocab, width=width, maps=maps)
        if not isinstance(spans, Sequence) or not spans:
            raise InputError(f"spans must be how many tokens each convolution sees, like (3, 4, 5), got {spans!r}.")
        check_counts(**{f"spans[{i}]": s for i, s in enumerate(spans)})
        check_share(dropout=dropout)
        if length < max(spans):
            raise InputError(f"TextCNN takes texts of at least {max(spans)} tokens, got length {length}.")
        features = _Spans(vocab, width, maps, spans, dropout)
        super().__init__(features, nn.Linear(maps * len(spans), classes), (length,))


class _Spans(nn.Module):
    def __init__(self, vocab: int, width: int, maps: int, spans: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocab, width, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(width, maps, span) for span in spans)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).transpose(1, 2)
        vector: Tensor = self.drop(torch.cat([torch.relu(conv(x)).amax(2) for conv in self.convs], dim=1))
        return vector


class CharRNN(Split):
    """The next character from those before it: embedding of 8, two LSTM layers of 256, the last position's output.

    The Shakespeare model of LEAF: 819,920 parameters for 80 characters; torch has two bias vectors in each recurrent
    layer. ``cell="gru"`` takes gated recurrent units instead.

    Args:
        vocab: How many token ids there are; as many as classes by default.
        width: Numbers in a token's vector.
        hidden: Width of the recurrent layers.
        layers: How many recurrent layers there are.

    Reference: Caldas et al., LEAF, 2018, arXiv:1812.01097.

    Example:
        >>> import torch
        >>> CharRNN(length=8, hidden=16)(torch.zeros(2, 8, dtype=torch.long)).shape
        torch.Size([2, 80])
    """

    ids = True

    def __init__(
        self,
        length: int = 80,
        classes: int = 80,
        vocab: int | None = None,
        width: int = 8,
        hidden: int = 256,
        layers: int = 2,
        cell: str = "lstm",
    ) -> None:
        vocab = classes if vocab is None else vocab
        check_counts(length=length, classes=classes, vocab=vocab, width=width, hidden=hidden, layers=layers)
        check_choice("cell", cell, ("lstm", "gru"))
        super().__init__(_Recurrent(vocab, width, hidden, layers, cell), nn.Linear(hidden, classes), (length,))


class _Recurrent(nn.Module):
    def __init__(self, vocab: int, width: int, hidden: int, layers: int, cell: str) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(vocab, width)
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.rnn = kind(width, hidden, layers, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.rnn(self.embedding(ids))[0]
        return out[:, -1]
