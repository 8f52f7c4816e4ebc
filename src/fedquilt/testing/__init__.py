"""Is what you wrote well-behaved? One call for a method, a codec or an engine; see ``docs/testing.md``."""

from typing import TYPE_CHECKING, Any

from fedquilt.testing.checks import Check as Check
from fedquilt.testing.checks import CheckReport as CheckReport
from fedquilt.testing.checks import CheckResult as CheckResult
from fedquilt.testing.codecs import check_codec as check_codec
from fedquilt.testing.codecs import checks_of_codec as checks_of_codec
from fedquilt.testing.engines import check_engine as check_engine
from fedquilt.testing.engines import checks_of_engine as checks_of_engine
from fedquilt.testing.methods import check as check
from fedquilt.testing.methods import check_method as check_method
from fedquilt.testing.methods import checks_of as checks_of
from fedquilt.testing.toy import digits as digits
from fedquilt.testing.toy import fedavg as fedavg
from fedquilt.testing.toy import network as network

__all__ = [
    "Check",
    "CheckReport",
    "CheckResult",
    "check",
    "check_codec",
    "check_engine",
    "check_method",
    "checks_of",
    "checks_of_codec",
    "checks_of_engine",
    "digits",
    "fedavg",
    "network",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # Report and Result of 0.1
        from fedquilt.moved import moved

        return moved(f"{__name__}:{name}")
