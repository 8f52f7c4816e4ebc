"""``from fedquilt.methods import FedProx``: every method of the table, for programs and for type checkers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedquilt import methods
from fedquilt.registry import METHODS

SOURCE = Path(methods.__file__).with_suffix(".pyi").read_text()


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_can_be_imported_by_its_name(kind: str) -> None:
    entry = METHODS[kind]
    name = entry.where.rpartition(":")[2]
    assert name in methods.__all__
    assert name in dir(methods)
    if not name.islower():
        assert getattr(methods, name) is entry.load()


def test_type_checkers_are_told_the_same() -> None:
    told = set(re.findall(r"^from (\S+) import (\w+) as \2$", SOURCE, re.M))
    table = {tuple(entry.where.split(":")) for entry in METHODS.values()}
    assert told == {(module, name) for module, name in table if not name.islower()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(methods, "FedNothing")


def test_importing_the_names_does_not_import_torch() -> None:
    code = "import sys, fedquilt.methods, fedquilt.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
