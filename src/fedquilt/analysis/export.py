"""A model of a run as other programs load it: safetensors, ONNX, or a folder that transformers loads (extra ``hf``)."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import safetensors.torch
import torch
from torch import Tensor, nn

from fedquilt.analysis.run_models import RunModel, RunModels
from fedquilt.core.exchange import Method
from fedquilt.core.net import logits_of
from fedquilt.core.plain import Row
from fedquilt.errors import InputError, did_you_mean
from fedquilt.models.adapters import LowRank
from fedquilt.models.encoder import TextEncoder
from fedquilt.models.weights.hub import library, pretrained
from fedquilt.own_code import short
from fedquilt.rounds.client import one_thread
from fedquilt.runs.preparation import kept_in
from fedquilt.storage.files import storage, to_json, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator


Format = Literal["safetensors", "onnx", "hf"]
FORMATS: tuple[str, ...] = get_args(Format)
ENDS = {".safetensors": "safetensors", ".onnx": "onnx", "": "hf"}
BATCHES = (1, 2, 5)  # with which an ONNX model is compared with ours
NEAR = 1e-4  # of the largest score, by which they may differ


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        path: The file or folder.
        format: Which of the formats it is.
        facts: What the file says of itself: run, model, round, inputs, classes.
        difference: Of ONNX, the largest difference from the scores of the model here, as a share of the largest score.
        notes: What one should know.
    """

    path: Path
    format: str
    facts: Row
    difference: float | None
    notes: tuple[str, ...]


def export_model(
    folder: str | Path,
    to: str | Path,
    model: str = "global",
    format: str | None = None,
    force: bool = False,
    *,
    method: Method | None = None,
) -> Exported:
    """Write a model of a run as other programs load it.

    Args:
        folder: Of the run; of one that is not over, its newest snapshot counts.
        to: A file, or for 'hf' a folder.
        model: 'global', 'best' (the global one of the best round), 'cluster:2' or 'client:7'.
        format: 'safetensors': the module's own state dict, frozen parts and buffers included. 'onnx': takes prepared
            rows, any number of them, and is compared with the model here (extra ``onnx``). 'hf': a folder for
            ``from_pretrained``, of models that are made of one (extra ``hf``). By default as the name ends.
        force: Replace what is there.
        method: That of the run, where a script began it with a network or method of its own.

    Example:
        >>> export_model("runs/quick-1a2b3c4d", "global.onnx").difference < 1e-4  # doctest: +SKIP
        True
    """
    place, run = Path(to), RunModels.of(folder, method)
    chosen = format or ENDS.get(place.suffix)
    if chosen not in FORMATS:
        told = f"format={format!r}{did_you_mean(str(format), FORMATS)}" if format else f"'{place}' ends in no known way"
        raise InputError(f"{told}. The formats are {', '.join(FORMATS)}.")
    if place.exists() and not force:
        raise InputError(f"'{place}' exists. Give another name, or --force to replace it.")
    found = run.model(model)
    module = found.module()
    facts = facts_of(run, found, module)
    difference = None
    with one_thread():
        if chosen == "safetensors":
            content = {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}
            write_atomic(place, safetensors.torch.save(content, {"format": "pt", "fedquilt": json.dumps(facts)}))
        elif chosen == "hf":
            save_folder(module, place, facts)
        else:
            difference = _onnx(run, found, module, place, facts)
    return Exported(place, chosen, facts, difference, tuple(filter(None, (found.note, run.unfinished))))


def facts_of(run: RunModels, found: RunModel, module: nn.Module) -> Row:
    """What goes with an exported model: where it comes from, what it takes, and what its classes are."""
    inputs, kept = run.inputs, kept_in(run.folder)
    return {
        "run": run.folder.resolve().name,
        "method": run.method_name,
        "model": type(module).__name__ if run.config.script else short(run.config.model.kind),
        "of": found.name,
        "round": found.round,
        "input": {"shape": list(inputs.shape), "dtype": inputs.dtype},
        "prepared": kept.prepare.describe() if kept else inputs.told(),
        "classes": inputs.classes,
        "names": list(inputs.names),
    }


class _Scores(nn.Module):
    """What people ask a model for: class scores, or where it has no classes, features."""

    def __init__(self, module: nn.Module, embeds: bool) -> None:
        super().__init__()
        self.module, self.embeds = module, embeds

    def forward(self, x: Tensor) -> Tensor:
        if self.embeds:
            found: Tensor = self.module.embed(x)  # type: ignore[operator]
            return found
        return logits_of(self.module(x))


def _onnx(run: RunModels, found: RunModel, module: nn.Module, path: Path, facts: Row) -> float:
    """Write it, if it computes what the model here does; the largest difference."""
    if found.note:
        raise InputError(f"'{found.name}' as ONNX would give other predictions than the run: {found.note}.")
    onnx, runtime = _libraries()
    embeds = bool(getattr(run.learned.method, "reconstructs", False))
    scores = _Scores(module, embeds).eval()
    content = _converted(onnx, scores, run.probe(BATCHES[1]), {**facts, "output": "features" if embeds else "scores"})
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    difference = max(_apart(session, scores, run.probe(rows)) for rows in BATCHES)
    if not difference <= NEAR:
        raise InputError(
            f"'{path}' is not written: as ONNX the model's scores differ by {difference:.1e} of the largest one (at "
            f"most {NEAR:.0e} may be rounding). Use --format safetensors."
        )
    write_atomic(path, content)
    return difference


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise InputError(f"ONNX needs {error.name}: pip install 'fedquilt[onnx]'.") from error
    return onnx, onnxruntime


def _converted(onnx: Any, scores: nn.Module, rows: Tensor, facts: Row) -> bytes:
    """The model as ONNX, for any number of rows."""
    try:
        with _quiet():
            program = torch.export.export(
                scores, (rows,), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False
            )
            named: dict[str, Any] = {"input_names": ["x"], "output_names": [str(facts["output"])]}
            made = torch.onnx.export(program, dynamo=True, verbose=False, **named)
            assert made is not None
            proto = made.model_proto
    except Exception as error:  # whatever torch and its translators raise about a module that they cannot follow
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        fixed = " Its forward fixes the number of rows: write x.shape[0] there, not len(x)." if "rows" in first else ""
        raise InputError(
            f"torch cannot write this model as ONNX: {first[:300]}{fixed} Or use --format safetensors."
        ) from error
    onnx.helper.set_model_props(proto, {"fedquilt": json.dumps(facts)})
    content: bytes = proto.SerializeToString()
    return content


def _apart(session: Any, scores: nn.Module, rows: Tensor) -> float:
    """How far the scores of both are apart, as a share of the largest."""
    with torch.inference_mode():
        ours = scores(rows).float()
    (theirs,) = session.run(None, {"x": rows.numpy()})
    return float((torch.from_numpy(theirs).float() - ours).abs().max() / ours.abs().max().clamp(min=1e-12))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the translators log and warn of on their way; what matters is compared afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


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
            f"{facts['model']} is not a transformers model (as text_encoder and hf_mae are): it has no "
            "save_pretrained. Use --format safetensors or onnx."
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
