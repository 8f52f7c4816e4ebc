"""What would leave a site: every tensor of every message, found by playing the recipe here, on this site's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedquilt.core.record import unpack
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.deploy.site import SiteSettings, source_of
from fedquilt.engines.client_side import Outcome, Task
from fedquilt.engines.engine import Lost
from fedquilt.engines.flower.node import prepared
from fedquilt.engines.local import Local
from fedquilt.engines.rounds import Rounds
from fedquilt.metrics.scoring import score_of


class _Listening(Local):
    """The local engine, with a record of what every upload holds."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: dict[str, tuple[ClientId, bytes]] = {}

    def visits(
        self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]
    ) -> Iterator[tuple[ClientId, Outcome | Lost]]:
        """As local."""
        for client in clients:
            asked = task(client)
            outcome = self.side.visit(asked)
            self.uploads.setdefault(asked.exchange, (client, outcome.upload))
            yield client, outcome


def leaving(settings: SiteSettings, recipe: Path, rounds: int = 3) -> dict[str, Any]:
    """For each exchange of the recipe's first rounds, what an upload from here holds. Nothing is sent anywhere."""
    from fedquilt.runs.build import method_of
    from fedquilt.runs.config import load

    config = load(recipe)
    if settings.classes is None:  # the server would say so
        settings = settings.model_copy(update={"classes": config.flower.classes})
    source: Any = source_of(settings)
    engine = _Listening()
    method = method_of(config, source)
    played = Rounds(method, source, engine, Seed(config.seed), score=score_of(method))
    for _ in range(min(rounds, config.rounds)):
        played.play()
    scores = played.examine(list(source.examined)[:1])
    return {
        "introduction": {
            "clients": [repr(c) for c in source.ids], "rows of each client": [source.size(c) for c in source.ids],
            "shape of a row": list(source.site(source.ids[0], 0).train.whole().x.shape[1:]),
            "how rows are prepared": prepared(getattr(source, "prepare", None)),
            "type of a row": str(source.site(source.ids[0], 0).train.whole().x.dtype).removeprefix("torch."),
            "classes": source.classes, "a salted hash of the data": "64 characters",
            "versions": "of fedquilt, torch and flwr",
        },
        "with each upload": [
            "seconds", "steps", "training loss", "whether the state is finite", "the sha256 of the state",
            *(["scores before and after training"] if config.evaluate.local else []),
        ],
        "exchanges": {name: _contents(frame) for name, (_, frame) in engine.uploads.items()},
        "scores": next(iter(scores.values()), {}) and _scores(next(iter(scores.values()))),
        "stays here": ["the rows", "clients' states, of which only a sha256 is sent", "traces of failures"],
    }  # fmt: skip


def _contents(frame: bytes) -> dict[str, Any]:
    parts = [
        {"name": name, "shape": list(t.shape), "type": str(t.dtype).removeprefix("torch."), "bytes": t.nbytes}
        if isinstance(t, Tensor)
        else {"name": name, "shape": [len(t)], "type": "coded", "bytes": len(t)}
        for name, t in _walk(unpack(frame), "")
        if isinstance(t, Tensor | bytes)
    ]
    numbers = {name: value for name, value in _walk(unpack(frame), "") if not isinstance(value, Tensor | bytes)}
    return {"tensors": parts, "numbers": numbers, "bytes in all": len(frame)}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _walk(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _walk(inner, f"{path}[{name}]")
    elif isinstance(value, tuple | list):
        for place, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{place}]")
    elif value is not None:
        yield path, value


def _scores(scores: Mapping[str, Any]) -> list[str]:
    return sorted(
        {f"{split}: {name}" for part in scores.values() for split, s in part.items() for name, _ in _walk(s, "")}
    )


def table(shown: Mapping[str, Any]) -> str:
    """The same for people."""
    lines = ["When it joins, this site says:"]
    lines += [f"  {name}: {value}" for name, value in shown["introduction"].items()]
    for exchange, found in shown["exchanges"].items():
        lines.append(f"In each '{exchange}' ({found['bytes in all']:,} bytes):")
        lines += [
            f"  {t['name']:<44} {t['type']:<9} {t['shape']!s:<18} {t['bytes']:>12,} bytes" for t in found["tensors"]
        ]
        lines += [f"  {name:<44} {value!r}" for name, value in found["numbers"].items()]
    lines.append("With each upload: " + ", ".join(shown["with each upload"]))
    lines.append("When models are scored: " + ", ".join(shown["scores"]))
    return "\n".join([*lines, "Never: " + "; ".join(shown["stays here"])])
