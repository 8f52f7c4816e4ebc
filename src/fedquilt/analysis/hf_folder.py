"""A model as a folder that transformers loads with ``from_pretrained`` (extra ``hf``)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedquilt.core.plain import Row
from fedquilt.errors import InputError
from fedquilt.models.adapters import LowRank
from fedquilt.models.encoder import TextEncoder
from fedquilt.models.weights.hub import library, pretrained
from fedquilt.storage.files import storage, to_json, write_atomic

HEAD, ADAPTERS, FACTS = "head.safetensors", "adapters.safetensors", "fedquilt.json"


def save_folder(module: nn.Module, path: Path, facts: Row) -> None:
    """The part that transformers knows, as its own folder; what stands on it beside, and a card that says how to use
    it."""
    from fedquilt.models.masked.hf_mae import ViTMAE  # with nothing of transformers unless one is made

    if isinstance(module, TextEncoder):
        whole, beside, how = _encoder(module)
    elif isinstance(module, ViTMAE):
        whole, beside, how = _autoencoder(module)
    elif hasattr(module, "save_pretrained"):
        whole, beside, how = module, {}, f"from transformers import {type(module).__name__}"
    else:
        raise InputError(
            f"{facts['model']} is not made of a model of transformers, as text_encoder and hf_mae are, and has no "
            "save_pretrained. Take --format safetensors or onnx."
        )
    part = path.with_name(path.name + ".part")
    with storage(path.parent):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        whole.save_pretrained(part)
        if isinstance(module, TextEncoder):
            _tokeniser(module, part)
        for name, tensors in beside.items():
            write_atomic(part / name, safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()}))
        write_atomic(part / FACTS, to_json(facts, indent=1).encode())
        write_atomic(part / "README.md", _card(facts, how).encode())
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)


def _encoder(module: TextEncoder) -> tuple[Any, dict[str, dict[str, Tensor]], str]:
    """The encoder with its pooler, which this library leaves out, as its folder has it; the head beside."""
    encoder: Any = module.features.encoder
    whole = pretrained("AutoModel", encoder.name_or_path, use_safetensors=True, dtype=torch.float32)
    whole.load_state_dict(encoder.state_dict(), strict=getattr(whole, "pooler", None) is None)
    how = (
        "from transformers import AutoModel\n\n"
        f"# scores = head(mean of the last layer over the tokens that are not padding); head: {HEAD}"
    )
    return whole, {HEAD: module.head.state_dict()}, how


def _tokeniser(module: TextEncoder, path: Path) -> None:
    """That of the encoder's folder, if there is one."""
    encoder: Any = module.features.encoder
    try:
        pretrained("AutoTokenizer", encoder.name_or_path).save_pretrained(path)
    except (InputError, ImportError):
        return


def _autoencoder(module: Any) -> tuple[Any, dict[str, dict[str, Tensor]], str]:
    """The masked autoencoder; low-rank changes are added to its layers, bottlenecks stand beside it."""
    adapters: dict[str, Any] = dict(module.adapters.items()) if hasattr(module, "adapters") else {}
    beside = {}
    for name, adapter in adapters.items():
        if isinstance(adapter, LowRank):
            layer = module.get_submodule(name.replace("-", "."))
            with torch.no_grad():
                layer.weight += adapter.scale * adapter.up.weight @ adapter.down.weight
        else:
            beside = {ADAPTERS: {n: t.detach() for n, t in module.adapters.state_dict().items()}}
    whole = library().ViTMAEForPreTraining(module.config)
    whole.vit, whole.decoder = module.vit, module.decoder
    how = "from transformers import ViTMAEForPreTraining"
    if beside:
        how += f"\n\n# without the adapters: those are in {ADAPTERS}, for fedquilt.models.inject"
    return whole, beside, how


def _card(facts: Row, how: str) -> str:
    kind = how.split()[3]
    classes = ", ".join(facts["names"]) or f"{facts['classes']} classes, by number"
    return (
        f"# {facts['run']}, {facts['of']}\n\n"
        f"Trained with fedquilt: `{facts['model']}` by `{facts['method']}`, after round {facts['round']}.\n\n"
        f"- rows: {facts['input']['dtype']} of shape {facts['input']['shape']}; {facts['prepared']}\n"
        f"- classes: {classes}\n\n"
        f'```python\n{how}\n\nmodel = {kind}.from_pretrained(".")\n```\n'
    )
