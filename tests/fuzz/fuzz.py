"""Mutates frames and recipes, and counts what became of them: ``make fuzz``, or with numbers of your own.

    python tests/fuzz/fuzz.py --frames 1000000 --configs 200000 --seed 0 --processes 2

A case is a pure function of the seed and its number, so one that failed is played again with ``--only KIND:NUMBER``. A
crash is any error that is not one of ours; a hang is more than a second of processor time; and a process may not take
more than ``--memory`` megabytes beyond what it began with.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

SECONDS = 1.0  # of processor time that a case may take
DATA = 0.05  # of the recipes go on to the data
CHUNK = 500
LINE = 5_000  # cases after which a file is told how far it is


Wrong = tuple[str, str, str]  # a case, its error and where in the library that was, and the whole trace


class Hang(BaseException):
    """A case took too long."""


@dataclass
class Found:
    """What became of the cases: how many of each kind, and those that went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[Wrong] = field(default_factory=list)
    slowest: float = 0.0
    grown: float = 0.0  # megabytes of the process beyond its size at the beginning

    def add(self, other: Found) -> None:
        """Both together."""
        self.counts += other.counts
        self.wrong += other.wrong
        self.slowest, self.grown = max(self.slowest, other.slowest), max(self.grown, other.grown)


@contextmanager
def limited(memory: int) -> Iterator[None]:
    """Inside, a case that hangs is interrupted, and memory is bounded."""

    def ring(number: int, frame: Any) -> None:
        raise Hang

    before, limits = signal.signal(signal.SIGPROF, ring), resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + memory * 2**20, limits[1]))
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def frame_case() -> Callable[[random.Random], str]:
    """Plays one mutated frame."""
    import fuzz_frames

    seeds = fuzz_frames.seedlings()
    fuzz_frames.warm()

    def play(draw: random.Random) -> str:
        return fuzz_frames.tried(*next(fuzz_frames.mutants(draw, seeds)))

    return play


def config_case() -> Callable[[random.Random], str]:
    """Plays one mutated recipe."""
    import fuzz_configs

    from fedquilt.pieces import etf

    seeds = fuzz_configs.Seeds.found()
    fuzz_configs.warm()
    etf.projected.__defaults__ = (50,)  # steps: FedLoGe computes its frame when it is made, for seconds if need be
    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    os.chdir(folder.name)

    def play(draw: random.Random) -> str:
        text, file = fuzz_configs.mutated(draw, seeds), Path(folder.name) / "recipe.toml"
        return fuzz_configs.tried(text, file, data=draw.random() < DATA)

    return play


CASES = {"frame": frame_case, "config": config_case}
_ready: dict[str, Callable[[random.Random], str]] = {}


def played(kind: str, seed: int, numbers: range, memory: int = 1024) -> Found:
    """Play cases by their numbers."""
    if kind not in _ready:
        _ready[kind] = CASES[kind]()
        _warm(_ready[kind])
    found, began = Found(), _resident()
    with limited(memory), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                found.counts[_ready[kind](random.Random(f"{seed}-{kind}-{number}"))] += 1
            except Hang:
                found.counts["HANG"] += 1
                found.wrong.append((f"{kind}:{number}", *_where(None)))
            except BaseException as error:
                found.counts["CRASH"] += 1
                found.wrong.append((f"{kind}:{number}", *_where(error)))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            found.slowest = max(found.slowest, time.process_time() - start)
    found.grown = (_resident() - began) / 2**20
    return found


def _warm(play: Callable[[random.Random], str]) -> None:
    """Some cases that do not count: what is imported or kept once is there after them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(10):
            with suppress(Exception):
                play(random.Random(f"warm-{number}"))


def _where(error: BaseException | None) -> tuple[str, str]:
    """An error with the innermost line of the library that it came through; and the end of its trace."""
    trace = traceback.format_exc()
    ours = [line.strip() for line in trace.splitlines() if f"{os.sep}src{os.sep}fedquilt{os.sep}" in line]
    return f"{type(error).__name__ if error else 'hangs'} {ours[-1] if ours else ''}", trace[-1500:]


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _chunk(asked: tuple[str, int, int, int, int]) -> tuple[str, int, Found]:
    kind, seed, low, high, memory = asked
    return kind, high - low, played(kind, seed, range(low, high), memory)


def main() -> int:
    """The command; its exit code says whether anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--configs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--memory", type=int, default=1024, help="megabytes that a process may take beyond its start")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="play one case, frame:17 or config:4, and show its error")
    asked = parser.parse_args()
    os.environ.setdefault("FEDQUILT_MAX_BYTES", "20M")  # larger networks would be made, in seconds
    os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other would count as processor time
    if asked.only:
        kind, _, number = asked.only.partition(":")
        found = played(kind, asked.seed, range(int(number), int(number) + 1), asked.memory)
        print(dict(found.counts), *(trace for _, _, trace in found.wrong), sep="\n")
        return bool(found.wrong)
    return _all(asked)


def _all(asked: argparse.Namespace) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = {"frame": asked.frames, "config": asked.configs}
    chunks = [
        (kind, asked.seed, low, min(low + CHUNK, count), asked.memory)
        for kind, count in total.items()
        for low in range(0, count, CHUNK)
    ]
    results = {kind: Found() for kind in total}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool, Progress(*columns) as bar:
        tasks = {kind: bar.add_task(f"{kind}s", total=count) for kind, count in total.items() if count}
        for kind, count, found in pool.imap_unordered(_chunk, chunks):
            results[kind].add(found)
            bar.advance(tasks[kind], count)
            if not bar.console.is_terminal and (found.wrong or not results[kind].counts.total() % LINE):
                print(
                    f"{kind}s: {results[kind].counts.total():,} of {total[kind]:,}, {len(results[kind].wrong)} wrong",
                    flush=True,
                )
                for case, where, _ in found.wrong:
                    print(f"  {case}: {where}", flush=True)
    for kind, found in results.items():
        told = ", ".join(f"{n:,} {what}" for what, n in found.counts.most_common())
        print(f"{kind}s: {told}; slowest {found.slowest:.2f} s of processor time, memory +{found.grown:.0f} MB")
        for where, count in Counter(place for _, place, _ in found.wrong).most_common():
            case, _, trace = next(wrong for wrong in found.wrong if wrong[1] == where)
            print(f"\n{count} times {where}\nfor example {case}:\n{trace}")
    return int(any(found.wrong for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
