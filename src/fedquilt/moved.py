"""Where names of earlier versions are now. Old names go on working for one release, with a DeprecationWarning."""

from __future__ import annotations

NAMES = {  # 'module:name' of 0.1, and what it is now
    "fedquilt.core.exchange:OnBase": "fedquilt.methods.on_base:OnBase",
    "fedquilt.runs.check:check": "fedquilt.testing.methods:check",
    "fedquilt.methods.scaffold:scaffold": "fedquilt.methods.scaffold:Scaffold",
}
