"""What would leave a site: every tensor of every message, found by playing the recipe here, on this site's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedquilt import own_code
from fedquilt.core.columns import PerColumn
from fedquilt.core.seed import Seed
from fedquilt.data.tabular import scope_of
from fedquilt.deploy.site import SiteSettings, source_of
from fedquilt.engines.flower.node import prepared
from fedquilt.engines.local import Overheard
from fedquilt.metrics.scoring import score_of
from fedquilt.records.record import unpack
from fedquilt.rounds.client import Outcome, Scores, Task
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.rounds import Rounds

if TYPE_CHECKING:
    from fedquilt.config.config import Config


Uploads = dict[str, tuple[bytes, int]]  # of every exchange: the frame of the largest upload, and how small others are


def _note(uploads: Uploads, asked: Task, outcome: Outcome) -> None:
    largest, least = uploads.get(asked.exchange, (b"", len(outcome.upload)))
    uploads[asked.exchange] = bytes(max(largest, outcome.upload, key=len)), min(least, len(outcome.upload))


def _play(played: Rounds, uploads: Uploads, rounds: int, last: int) -> None:
    """So many rounds, and more until every exchange has happened, but none after the last one."""
    while played.done < min(rounds, last) or (played.done < last and played.exchanges.keys() - uploads.keys()):
        played.play()


def leaving(settings: SiteSettings, recipe: Path, rounds: int = 3, most: int = 100) -> dict[str, Any]:
    """For each exchange of the recipe, what an upload from here holds. Nothing is sent anywhere.

    The first ``rounds`` are played, and more until every exchange has happened, up to ``most``; those that did not are
    named.
    """
    from fedquilt.config.config import load
    from fedquilt.runs.build import method_of

    theirs = partial(own_code.only, settings.trusted_code, settings.trusted)  # the recipe may be somebody else's
    with theirs():
        config = load(recipe)
    if settings.classes is None:  # the server would say so
        settings = settings.model_copy(update={"classes": config.flower.classes})
    uploads: Uploads = {}
    engine = Overheard(partial(_note, uploads))
    source = _surveyed(source_of(settings), engine, config)
    with theirs():
        method = method_of(config, source)
        played = Rounds(method, source, engine, Seed(config.seed), score=score_of(method))
        _play(played, uploads, rounds, min(most, config.rounds))
    unseen = [name for name in played.exchanges if name not in uploads]
    first: Any = next(iter(played.evaluate(list(source.evaluated)[:1]).values()), {})
    return {
        "introduction": _introduction(source),
        "with each upload": [
            "seconds",
            "steps",
            "training loss",
            "whether the state is finite",
            "the sha256 of the state",
            *(["scores before and after training"] if config.evaluate.local else []),
        ],
        "exchanges": {name: _contents(*found) for name, found in uploads.items()},
        **({"not seen": {"rounds": played.done, "exchanges": unseen}} if unseen else {}),
        "scores": first and _scores(first),
        "stays here": ["the rows", "clients' states, of which only a sha256 is sent", "traces of failures"],
    }


def _surveyed(source: Any, engine: Engine, config: Config) -> Any:
    """The site's clients; before the first round, tables are surveyed."""
    from fedquilt.runs.preparation import survey

    scope = scope_of(config.data.standardise)
    if not isinstance(source.prepare, PerColumn) or scope is None:
        return source
    kinds = replace(source.prepare.blank(), scope=scope)
    return source.prepared(survey(source, engine, kinds, Seed(config.seed)).prepare)


def _introduction(source: Any) -> dict[str, object]:
    """What the site says of itself when it joins."""
    rows = source.site(source.ids[0], 0).train.whole().x
    return {
        "clients": [repr(c) for c in source.ids],
        "clients that are scored": [repr(c) for c in source.evaluated],
        "rows of each client": [source.size(c) for c in source.ids],
        "shape of a row": list(rows.shape[1:]),
        "how rows are prepared": prepared(getattr(source, "preparation", None) or getattr(source, "prepare", None)),
        "type of a row": str(rows.dtype).removeprefix("torch."),
        "classes": source.classes,
        "a salted hash of the data": "64 characters",
        "versions": "of fedquilt, torch and flwr",
    }


def _contents(frame: bytes, least: int) -> dict[str, object]:
    parts = [
        {"name": name, "shape": list(t.shape), "type": str(t.dtype).removeprefix("torch."), "bytes": t.nbytes}
        if isinstance(t, Tensor)
        else {"name": name, "shape": [len(t)], "type": "coded", "bytes": len(t)}
        for name, t in _walk(unpack(frame), "")
        if isinstance(t, Tensor | bytes)
    ]
    numbers = {name: value for name, value in _walk(unpack(frame), "") if not isinstance(value, Tensor | bytes)}
    return {"tensors": parts, "numbers": numbers, "bytes in all": len(frame), "at least": least}


def _walk(value: object, path: str) -> Iterator[tuple[str, object]]:
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


def _scores(scores: Scores) -> list[str]:
    return sorted(
        {f"{split}: {name}" for part in scores.values() for split, s in part.items() for name, _ in _walk(s, "")}
    )


def table(shown: Mapping[str, Any]) -> str:
    """The same for people."""
    lines = ["When it joins, this site says:"]
    lines += [f"  {name}: {value}" for name, value in shown["introduction"].items()]
    for exchange, found in shown["exchanges"].items():
        least, most = found["at least"], found["bytes in all"]
        lines.append(f"In each '{exchange}' ({'' if least == most else f'{least:,} to '}{most:,} bytes):")
        lines += [
            f"  {t['name']:<44} {t['type']:<9} {t['shape']!s:<18} {t['bytes']:>12,} bytes" for t in found["tensors"]
        ]
        lines += [f"  {name:<44} {value!r}" for name, value in found["numbers"].items()]
    if "not seen" in shown:
        names, rounds = ", ".join(map(repr, shown["not seen"]["exchanges"])), shown["not seen"]["rounds"]
        lines.append(f"The method also has {names}, which did not happen in {rounds} rounds with this site alone.")
    lines.append("With each upload: " + ", ".join(shown["with each upload"]))
    lines.append("When models are scored: " + (", ".join(shown["scores"]) or "nothing, as no rows are held out"))
    return "\n".join([*lines, "Never: " + "; ".join(shown["stays here"])])
