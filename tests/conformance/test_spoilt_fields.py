"""Every field of every upload, spoilt in every way: no run ends, and only the client that sent it is left out.

What must be refused: another type, dtype or shape, None where it is not declared, and numbers that are not finite.
Finite numbers of a declared range are legal; should the server's state leave its scale by them, they are refused, too.
A refused upload leaves the run as it is when that upload is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from conformance.cases import CASES, Case
from fedquilt.runs.runner import run
from helpers.spoiling import KINDS, Spoil, Spoiling

ROWS = [case for case in CASES if not case.alone]
ALWAYS = ("none", "string", "dtype", "shape", "nan")
DECLARED = {  # fields that may be None: a client without a cluster opens one, and a member need show no vector
    ("fedgroup-cold", "train.upload.cluster: none"),
    ("fedgroup-cold", "train.upload.vector: none"),
}
LIAR = 1


def played(case: Case, engine: Spoiling) -> tuple[str, set[object]]:
    """The digest after two rounds, and who was left out in any of them."""
    out: set[object] = set()
    digest = ""
    for snapshot in run(case.method, case.federation, rounds=2, engine=engine, score=None):
        out |= snapshot.log.left_out
        digest = snapshot.digest()
    return digest, out


def problems(case: Case, step: int, first: int = 0) -> Iterator[str]:
    """What went wrong with every ``step``-th way to spoil this method's uploads."""
    honest = Spoiling(None, {})
    played(case, honest)
    place = count(first)
    for exchange, fields in honest.seen.items():
        lost, _ = played(case, Spoiling(Spoil(LIAR, exchange), honest.memo))
        spoils = [Spoil(LIAR, exchange, path, kind) for path in sorted(fields, key=repr) for kind in KINDS]
        for spoil in spoils:
            if next(place) % step:
                continue
            engine = Spoiling(spoil, honest.memo)
            try:
                digest, out = played(case, engine)
            except Exception as error:
                yield f"{spoil}: the run ended: {type(error).__name__}: {error}"
                continue
            if not engine.hit:
                continue
            if out - {LIAR}:
                yield f"{spoil}: honest clients were left out: {out - {LIAR}}"
            elif out and digest != lost:
                yield f"{spoil}: refused, but the run is not that without the upload"
            elif not out and spoil.kind in ALWAYS and (case.name, str(spoil)) not in DECLARED:
                yield f"{spoil}: accepted"


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_a_spoilt_field_harms_only_its_sender(case: Case) -> None:
    """Every field in one way or two, others for every method; all of them: ``pytest -m slow``."""
    assert list(problems(case, step=7, first=ROWS.index(case))) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_every_spoilt_field_harms_only_its_sender(case: Case) -> None:
    assert list(problems(case, step=1)) == []
