"""Every error a user can meet. A message says what was wrong, the value, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedquiltError(Exception):
    """The root of all errors raised on purpose; ``exit_code`` is what the command returns.

    Example:
        >>> try:
        ...     raise InputError("A share must be in (0, 1], got 2.")
        ... except FedquiltError as error:
        ...     print(error.exit_code, error)
        2 A share must be in (0, 1], got 2.
    """

    exit_code = 1


class InputError(FedquiltError, ValueError):
    """Something the user gave cannot be used: a value, a file, a shape."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration with one or more problems, all of them listed."""

    def __init__(self, problems: list[str], where: str = "configuration") -> None:
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{where}: {count}\n" + "\n".join(f"  - {p}" for p in problems))


class FrameError(FedquiltError, ValueError):
    """Bytes that are not a well-formed frame."""

    exit_code = 3


class Stopped(FedquiltError):
    """Interrupted by the user; the message says how to go on."""

    exit_code = 130


class StageError(FedquiltError):
    """Raised inside local training to say which stage failed; engines turn it into ExchangeError."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        super().__init__(stage)


class ExchangeError(FedquiltError):
    """A method failed: names the method, the exchange, the stage, the client and the round."""

    exit_code = 3

    def __init__(
        self, method: str, exchange: str, stage: str, client: object, round: int, reason: str, trace: str = ""
    ) -> None:
        self.method, self.exchange, self.stage = method, exchange, stage
        self.client, self.round, self.reason, self.trace = client, round, reason, trace
        who = "" if client is None else f", client {client!r}"
        when = "" if round < 0 else f", round {round + 1}"  # people count rounds from 1
        text = f"{method}, exchange '{exchange}', stage '{stage}'{who}{when}: {reason}"
        super().__init__(text + (f"\n\nWhere it happened in the worker:\n{trace}" if trace else ""))


class RoundError(FedquiltError):
    """A round that cannot go on, for example because no client gave a usable reply."""

    exit_code = 3


class CallbackError(FedquiltError):
    """A callback of the user's raised: names the callback and what it was told."""

    exit_code = 3


class SnapshotError(FedquiltError):
    """No readable snapshot, or one that belongs to another run."""

    exit_code = 4


class StorageError(FedquiltError, OSError):
    """The run folder cannot be written: full, read-only, or gone."""

    exit_code = 4


class WorkerError(FedquiltError):
    """A worker process could not be started, or died again and again."""

    exit_code = 5


class DownloadError(FedquiltError, OSError):
    """A file could not be downloaded, or what came is not what was published."""

    exit_code = 6


def did_you_mean(name: str, known: Iterable[str], end: str = "") -> str:
    """'; did you mean ...?' or nothing but the ``end`` of the sentence."""
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else end
