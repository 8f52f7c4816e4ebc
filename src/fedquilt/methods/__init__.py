"""Published methods, one file each. ``from fedquilt.methods import FedProx`` imports its file when it is first used.

The registry says which there are, and where; type checkers read ``__init__.pyi``.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedquilt.registry import METHODS

_MODULES = {name: module for module, _, name in (entry.where.partition(":") for entry in METHODS.values())}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedquilt.methods' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
