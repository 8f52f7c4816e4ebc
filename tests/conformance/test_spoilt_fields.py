"""Every field of every upload, spoilt in every way: no run ends, and only the client that sent it is left out.

What must be refused: another type, dtype or shape, None where it is not declared, and numbers that are not finite.
Finite numbers of a declared range are legal; should the server's state leave its scale by them, they are refused, too.
A refused upload leaves the run as it is when that upload is lost. Of every method, a seventh of all ways is among the
promises in ``test_conformance.py``.
"""

from __future__ import annotations

import pytest

from conformance.cases import CASES, Case
from fedquilt.testing.methods import refuses_spoilt_fields
from fedquilt.testing.trial import Trial


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if not case.alone], ids=str)
def test_every_spoilt_field_harms_only_its_sender(case: Case) -> None:
    assert list(refuses_spoilt_fields(Trial(case.method, case.federation), step=1)) == []
