"""The examples run, and say what they claim."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_naive_loop_gives_the_same_weights() -> None:
    assert example("plain_fedavg").main() == 0.0


def test_own_method_is_short_and_learns() -> None:
    module = example("own_method")
    found = module.main()
    assert all(accuracy > 0.5 for accuracy in found.values())
    code = [inspect.getsource(module.Rolling), inspect.getsource(module.ServerMomentum)]
    lines = [ln for ln in "".join(code).splitlines() if ln.strip() and not re.match(r'\s*"""', ln)]
    assert len(lines) <= 25


def test_own_data_learns() -> None:
    assert example("own_data").main() > 0.75
