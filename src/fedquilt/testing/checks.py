"""A check: one property under a name, which can be called; and the report of many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from unittest import SkipTest

from fedquilt.core.plain import JSON

Problems = Iterator[str]


@dataclass(frozen=True)
class Check:
    """One property of one object.

    Called, it raises an AssertionError that says what is wrong, or ``unittest.SkipTest`` with the reason where the
    property does not apply; pytest knows both.

    Args:
        name: Of the property.
        look: Gives what is wrong, in words: nothing, if the property holds.

    Example:
        >>> from fedquilt.testing import checks_of, fedavg
        >>> check = checks_of(fedavg())[0]
        >>> check.name
        'stays_finite'
    """

    name: str
    look: Callable[[], Problems]

    def __call__(self) -> None:
        found = list(self.look())
        if found:
            raise AssertionError(f"{self.name}: {' '.join(found)}")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CheckResult:
    """How a check ended; ``words`` are the reason, if it did not pass.

    Example:
        >>> CheckResult("learns", "failed", ("It does not.",)).status
        'failed'
    """

    name: str
    status: Literal["passed", "skipped", "failed"]
    words: tuple[str, ...] = ()
    error: Exception | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.status:8}{self.name}" + "".join(f"\n          {line}" for line in self.words)


@dataclass(frozen=True)
class CheckReport:
    """How all checks of an object ended, and numbers on the way.

    Example:
        >>> report = CheckReport((CheckResult("learns", "passed"), CheckResult("resumes", "skipped")))
        >>> report.named("passed")
        ('learns',)
    """

    results: tuple[CheckResult, ...]
    facts: Mapping[str, JSON] = field(default_factory=dict)

    def named(self, status: str) -> tuple[str, ...]:
        """The names of those that 'passed', were 'skipped' or 'failed'."""
        return tuple(result.name for result in self.results if result.status == status)

    def __str__(self) -> str:
        return "\n".join(map(str, self.results))


def result_of(check: Check) -> CheckResult:
    """Run one check; an error on the way is a failure, too."""
    try:
        found = tuple(check.look())
    except SkipTest as reason:
        return CheckResult(check.name, "skipped", (str(reason),))
    except Exception as error:
        return CheckResult(check.name, "failed", (f"It ended with {type(error).__name__}: {error}",), error)
    return CheckResult(check.name, "failed" if found else "passed", found)


def report_of(checks: Iterable[Check], what: str) -> CheckReport:
    """Run all checks; an AssertionError tells of those that failed."""
    report = CheckReport(tuple(map(result_of, checks)))
    failed = [result for result in report.results if result.status == "failed"]
    if failed:
        told = "\n".join(map(str, failed))
        cause = next((result.error for result in failed if result.error is not None), None)
        raise AssertionError(f"{what}: {len(failed)} of {len(report.results)} checks failed.\n{told}") from cause
    return report
