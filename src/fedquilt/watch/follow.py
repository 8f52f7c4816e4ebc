"""One run as it goes on: its state, how far it is and when it will be done, its curve, clients, messages, and the
replies that were dropped."""

from __future__ import annotations

import json
import time
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.table import PRIMARY, ROWS_HALF, Metric, metrics
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.views import read_json
from fedquilt.storage.folder import is_held
from fedquilt.storage.journal import MESSAGES, NOW
from fedquilt.storage.logs import LEDGER, ROUNDS, gaps, in_words, row_in, vouched_in
from fedquilt.storage.mending import missing_of, told
from fedquilt.watch.find import RunPlace
from fedquilt.watch.tail import Log, Tail

SUMS = {"bytes_up": MEGABYTE, "bytes_down": MEGABYTE, "seconds": 1}  # added up from the first round, in these units
SCORED = ("test_loss", "test_accuracy", "valid_accuracy")  # one of them makes a round a scored one
COST = ("up", "down", "time", "seconds")
_WINDOW = 60.0  # seconds over which the pace is taken


def _tested() -> Iterator[tuple[Metric, str, str]]:
    """The test scores of a round that are shown: the metric, the key, and the name."""
    for m in metrics("watch"):
        yield m, f"test_{m.id}", f"test {m.name}"
        if "worst10" in m.summaries:
            yield m, f"test_{m.id}_worst10", f"test {m.name}, worst 10 %"


def scores() -> dict[str, Row]:
    """The scores of a round that have curves: their names, and whether they are shown in per cent."""
    found = {key: {"name": name, "share": m.share} for m, key, name in _tested()}
    found[f"valid_{PRIMARY}"] = {"name": f"validation {PRIMARY}", "share": True}
    return found | {"train_loss": {"name": "training loss", "share": False}}


def scores_told(row: Mapping[str, JSON]) -> list[tuple[str, str]]:
    """The test scores of a round in words, each with the ± that its test samples leave; without those told apart."""
    known = {key: _number(value) for key, value in row.items()}
    shown = [(m, key, name) for m, key, name in _tested() if key not in SCORED and known.get(key) is not None]
    return [(name, m.told(known, key) + " %" * m.share) for m, key, name in shown]


def point() -> tuple[str, ...]:
    """What the points of curves hold, in order."""
    return ("round", *scores(), *COST)


class WatchedFile:
    """A small file that is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.value: Row = {}
        self._known: tuple[int, int, int] | None = None

    def get(self) -> Row:
        """What is in it; nothing if it is missing or damaged."""
        try:
            found = self.path.stat()
        except OSError:
            self.value, self._known = {}, None
            return self.value
        known = (found.st_ino, found.st_size, found.st_mtime_ns)
        if known != self._known:
            self._known = known
            self.value = _settings(self.path) if self.path.suffix == ".toml" else read_json(self.path)
        return self.value


def message_in(line: bytes) -> Row | None:
    """A message, if the line is one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # a process that was killed left half a line, and the next one wrote on
        return None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str) or not isinstance(row.get("kind"), str):
        return None
    return row if all(_number(row.get(name)) is not None for name in ("time", "round")) else None


def _number(value: JSON) -> float | None:
    """A value if it is a number; files may hold anything."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return value if known else None


def _kind(section: JSON) -> JSON:
    return section.get("kind") if isinstance(section, dict) else section


def _settings(path: Path) -> Row:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


class Followed:
    """A run in a folder, looked at again and again; each look has a number."""

    def __init__(self, place: RunPlace) -> None:
        self.place, folder = place, place.folder
        self.config, self.result = WatchedFile(folder / "config.toml"), WatchedFile(folder / "result.json")
        self.now = WatchedFile(folder / NOW)
        self.points = Log(Tail(folder / ROUNDS, sound=partial(row_in, name=ROUNDS)), self._point)
        self._scores = tuple(scores())
        self.dropped = Log(Tail(folder / LEDGER, sound=partial(row_in, name=LEDGER)))
        self.messages = Log(Tail(folder / MESSAGES, sound=message_in))
        self.last: Mapping[str, JSON] = {}
        self.scored: Mapping[str, JSON] = {}
        self.held, self.trouble = False, ""
        self._seen: deque[tuple[float, int]] = deque()
        self._since = 0.0

    def _point(self, row: Row, before: list[JSON] | None) -> list[JSON]:
        if before is None:
            self.scored = {}
        self.last = row
        if any(row.get(name) is not None for name in SCORED):
            self.scored = row
        sofar = before[-1 - len(SUMS) : -1] if before is not None else [0] * len(SUMS)
        sums = [total + row[name] / unit for total, (name, unit) in zip(sofar, SUMS.items(), strict=True)]
        return [row["round"], *(_number(row.get(name)) for name in self._scores), *sums, row["seconds"]]

    def seen(self, number: int) -> None:
        """Read what is new; what cannot be read here keeps nobody from the other runs."""
        try:
            self.look(number)
            self.trouble = ""
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def told(self) -> Row:
        """The run in a line, also if its folder cannot be made sense of."""
        if not self.trouble:
            try:
                return self.line()
            except Exception as error:
                self.trouble = f"{type(error).__name__}: {error}"
        said = {"time": time.time(), "kind": "note", "round": 0, "text": f"cannot be read: {self.trouble}"}
        return {
            **dict.fromkeys(("name", "method", "engine", "pace", "left", "scored", "best_round", "stopped_early")),
            **dict.fromkeys(("accuracy", "accuracy_half", "loss", "train_loss")),
            **dict.fromkeys(("up", "down", "time", "dropped"), 0),
            **self.place.told(),
            "seed": self.place.seed,
            "state": "unreadable",
            "round": 0,
            "rounds": self.place.rounds,
            "phase": {},
            "said": said,
            "missing": said["text"],
            "accuracy_on": "test",
            "told": [],
        }

    def look(self, number: int) -> None:
        """Read what is new."""
        self.held = is_held(self.place.folder)
        if self.points.look(number):
            if self.points.born == number:
                self._seen.clear()
            if not self.points.rows:
                self.last, self.scored = {}, {}
            self._since = time.time()
            self._seen.append((self._since, self.round))
        self.dropped.look(number)
        self.messages.look(number)

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return int(self.points.rows[-1][0]) if self.points.rows else 0

    @property
    def rounds(self) -> int | None:
        """How many there will be."""
        planned = self.config.get().get("rounds", self.place.rounds)
        return planned if isinstance(planned, int) else None

    @property
    def state(self) -> str:
        """In a word: running, done, stopped (by its user), failed (by itself), killed, or waiting to begin."""
        if self.held:
            return "running"
        result = self.result.get()
        if (_number(result.get("rounds")) or 0) >= max(self.round, 1):
            return "done"
        if self.messages.rows and self.messages.rows[-1].get("kind") in ("stopped", "failed"):
            return str(self.messages.rows[-1]["kind"])
        return "killed" if self.points.rows or self.messages.rows else "waiting"

    @property
    def pace(self) -> float | None:
        """Seconds per round: as seen from here if that is long enough, otherwise as the run says."""
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[1][0] > _WINDOW:
            self._seen.popleft()
        if len(self._seen) > 1 and (span := self._seen[-1][0] - self._seen[0][0]) >= 5:
            return span / max(1, self._seen[-1][1] - self._seen[0][1])
        told = [row[-1] for row in self.points.rows[-10:] if isinstance(row[-1], int | float)]
        return sum(told) / len(told) if told else None

    @property
    def missing(self) -> str:
        """What is not in its logs that should be, in words; nothing if all is there."""
        result = self.result.get()
        there = {row[0] for row in self.points.rows}
        absent = gaps(there, max([int(_number(result.get("rounds")) or 0), *there]))
        found = [f"{ROUNDS} has no rows of rounds {in_words(absent)}"] if absent else []
        found += [f"{name}: {told(lost)}" for name, lost in missing_of(result).items() if name != ROUNDS]
        for name, extent in vouched_in(result).items():
            try:
                size = (self.place.folder / name).stat().st_size
            except OSError:
                size = 0
            if size < extent.length and name != ROUNDS:
                found.append(f"{name} has {size} bytes of {extent.length}")
        return "; ".join(found)

    def left(self) -> float | None:
        """Seconds until it will be done, at its pace; None if nobody knows."""
        if self.pace is None or self.rounds is None:
            return None
        spent = min(time.time() - self._since, self.pace) if self.held and self._since else 0.0
        return max(0.0, (self.rounds - self.round) * self.pace - spent)

    def _phase(self, state: str) -> Row:
        """What a run is doing now, unless that is of a round that is over."""
        now = self.now.get() if state == "running" else {}
        return now if (_number(now.get("round")) or 0) >= self.round else {}

    def line(self) -> Row:
        """The run in a line."""
        config, state = self.config.get(), self.state
        seed = self.place.seed if self.place.seed is not None else config.get("seed")
        last = dict(zip(("round", *self._scores, *COST), self.points.rows[-1], strict=True)) if self.points.rows else {}
        said = [m for m in self.messages.rows if m.get("text")]
        return {
            **self.place.told(),
            "seed": seed,
            "name": config.get("name"),
            "method": _kind(config.get("method")),
            "engine": _kind(config.get("engine")),
            "state": state,
            "round": self.round,
            "rounds": self.rounds,
            "pace": self.pace,
            "left": self.left() if state == "running" else None,
            "phase": self._phase(state),
            "missing": self.missing,
            "accuracy": _number(self.scored.get("test_accuracy", self.scored.get("valid_accuracy"))),
            "accuracy_on": "validation" if self.scored and "test_accuracy" not in self.scored else "test",
            "loss": _number(self.scored.get("test_loss")),
            "accuracy_half": _number(self.scored.get(f"test_{PRIMARY}{ROWS_HALF}")),
            "told": scores_told(self.scored),
            "scored": self.scored.get("round"),
            "train_loss": _number(self.last.get("train_loss")),
            "best_round": self.result.get().get("best_round"),
            "stopped_early": self.result.get().get("stopped_early"),
            "up": last.get("up", 0),
            "down": last.get("down", 0),
            "time": last.get("time", 0),
            "dropped": sum(not row.get("used") for row in self.dropped.rows),
            "said": said[-1] if said else None,
        }
