"""Every field of every upload, spoilt in every way: no run ends, and only the client that sent it is left out.

What must be refused: another type, dtype or shape, None where it is not declared, numbers that are not finite, and
finite ones that nobody honest could send. A refused upload leaves the run as it is when that upload is lost. What may
be accepted although it changes the run is listed here, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest
import torch

from conformance.cases import CASES, Case
from fedquilt.core.columns import Column, PerColumn
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.methods.survey import Survey
from fedquilt.registry import METHODS
from fedquilt.runs.runner import run
from fedquilt.testing.spoiling import ALWAYS, KINDS, Path, Spoil, Spoiling


def survey() -> Case:
    """What is asked about tables before the first round."""
    draw = Seed(0).torch()
    x = torch.stack([torch.randn(60, generator=draw), torch.randint(3, (60,), generator=draw).float()], 1)
    table = Federation.from_arrays(x, torch.arange(60) % 2, clients=4, standardise=None)
    return Case("survey", Survey(PerColumn((Column("age"), Column("sex", True)))), table)


ROWS = [*(case for case in CASES if not case.alone), survey()]
LEGAL = (  # the kind, the field, and why it may be accepted
    ("none", r"train\.upload\.cluster", "a client without a cluster opens one"),
    ("none", r"train\.upload\.vector", "a member need show no vector"),
    ("negative", r"\w+\.upload(\.(base|inner|classes))?", "all that is inside is -1, which is legal there"),
    (
        "negative",
        r".*\.(delta|control|gradients?|vector|first|second|prototypes|prototype\.means|head)(\..*)?",
        "changes, gradients and features of -1 are no longer than honest ones may be",
    ),
    ("negative", r"columns\.upload\.mean", "any mean is that of some numbers"),
    ("1e30|huge", r".*\.(shown|seen)", "truth values: which classes a client has is its own to say"),
)
UNASKED = {("ifca", "starts"), ("cgpfl", "starts")}  # asked for by starts = "updates" only, which other rows have
ALIKE = {("flhc-retest", "retest")}  # what the test of the clusters finds is the same without one client
LIAR = 1


def played(case: Case, engine: Spoiling) -> tuple[str, set[object]]:
    """The digest after two rounds, and who was left out in any of them."""
    out: set[object] = set()
    digest = ""
    for snapshot in run(case.method, case.federation, rounds=2, engine=engine, score=None):
        out |= snapshot.log.left_out
        digest = snapshot.digest()
    return digest, out


def legal(spoil: Spoil) -> bool:
    """Whether this may be accepted."""
    field = ".".join(map(str, (spoil.exchange, *spoil.path)))
    return any(re.fullmatch(kinds, spoil.kind or "") and re.fullmatch(where, field) for kinds, where, _ in LEGAL)


def problems(case: Case) -> Iterator[str]:
    """What went wrong with every way to spoil this method's uploads."""
    honest = Spoiling(None, {})
    good, _ = played(case, honest)
    asked = [exchange for exchange, *_ in honest.targets(LIAR)]
    for exchange in case.method.exchanges():
        if exchange.name not in asked and (case.name.split("-")[0], exchange.name) not in UNASKED:
            yield f"{exchange.name}: was never played"
    for exchange, liar, fields in honest.targets(LIAR):
        lost, _ = played(case, Spoiling(Spoil(liar, exchange), honest.memo))
        if lost == good and (case.name, exchange) not in ALIKE:
            yield f"{exchange}: the run is the same without the upload, so that nothing is compared"
        hit: set[Path] = set()
        for path, kind in product(fields, KINDS):
            spoil = Spoil(liar, exchange, path, kind)
            engine = Spoiling(spoil, honest.memo)
            try:
                digest, out = played(case, engine)
            except Exception as error:
                yield f"{spoil}: the run ended: {type(error).__name__}: {error}"
                continue
            if not engine.hit:
                continue
            hit.add(path)
            if out - {liar}:
                yield f"{spoil}: honest clients were left out: {out - {liar}}"
            elif out and digest != lost:
                yield f"{spoil}: refused, but the run is not that without the upload"
            elif not out and (kind in ALWAYS or digest != good) and not legal(spoil):
                yield f"{spoil}: accepted"
        yield from (f"{Spoil(liar, exchange, path)}: was never spoilt" for path in fields if path not in hit)


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_a_spoilt_field_harms_only_its_sender(case: Case) -> None:
    assert list(problems(case)) == []


def test_every_method_that_can_be_asked_for_has_a_row() -> None:
    """And every exchange that only some of a method's rows play is played in one of them."""
    made = [case.method for case in CASES]
    kinds = {type(m) for m in (*made, *(getattr(m, "base", m) for m in made))}
    loaded = {name: METHODS[name].load() for name in METHODS}
    assert not [name for name, kind in loaded.items() if isinstance(kind, type) and kind not in kinds]
    starting = {type(case.method).__name__ for case in ROWS if getattr(case.method, "starts", None) == "updates"}
    assert starting >= {"IFCA", "IFCAGradient"}
