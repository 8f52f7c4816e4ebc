"""What was importable in 0.1 still is, with a warning that says where it is now."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings

import pytest

from fedquilt.moved import MODULES, NAMES, moved


@pytest.fixture(autouse=True)
def _fresh():
    """Aliases that this test imports are gone after it: their warning comes at their first import."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in MODULES:
            del sys.modules[name]


def test_every_old_module_has_a_new_one() -> None:
    lacking = [new for new in MODULES.values() if importlib.util.find_spec(new) is None]
    assert lacking == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_old_module_hides_a_new_one() -> None:
    """An alias is found only where nothing else is."""
    assert [old for old in MODULES if importlib.util.find_spec(old).loader.__class__.__name__ != "Finder"] == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_old_name_has_a_new_one(name: str) -> None:
    module, _, leaf = name.partition(":")
    assert getattr(importlib.import_module(module), leaf) is moved(name)


def test_an_old_import_goes_on_working_and_says_so() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = importlib.import_module("fedquilt.core.errors")
        old = importlib.import_module("fedquilt.methods.scaffold").scaffold
    from fedquilt.errors import InputError
    from fedquilt.methods import Scaffold

    assert (module.InputError, old) == (InputError, Scaffold)
    texts = [str(warning.message) for warning in said]
    assert any("fedquilt.core.errors is fedquilt.errors now" in text for text in texts)
    assert any("scaffold of fedquilt.methods.scaffold is" in text and "Scaffold now" in text for text in texts)


def test_what_was_never_there_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fedquilt.core.nothing")
    with pytest.warns(DeprecationWarning, match="errors"), pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module("fedquilt.core.errors").nothing
