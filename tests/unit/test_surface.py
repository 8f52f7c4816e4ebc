"""The public surface: every name in ``__all__`` is there, and importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedquilt


def test_every_public_name_can_be_had() -> None:
    for name in fedquilt.__all__:
        assert getattr(fedquilt, name) is not None
    assert sorted(fedquilt.__all__) == dir(fedquilt)


def test_every_method_can_be_imported_from_the_top() -> None:
    from fedquilt import HCFL, methods

    assert HCFL is methods.HCFL
    assert all(getattr(fedquilt, name) is getattr(methods, name) for name in methods.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fedquilt, "fedavgg")


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedquilt; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("room", ["registry", "own_code", "methods", "report", "config.config"])
def test_a_room_may_be_the_first_that_is_imported(room: str) -> None:
    subprocess.run([sys.executable, "-c", f"import fedquilt.{room}"], check=True)
