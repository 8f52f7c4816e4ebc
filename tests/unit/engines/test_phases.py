"""The stopwatch of a round: one phase at a time, and every second once."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import pytest

from fedquilt.rounds import phases
from fedquilt.rounds.phases import PhaseMeter, resident


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock whose first entry is the time."""
    now = [100.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    return now


def spent(meter: PhaseMeter) -> dict[tuple[str | None, str], float]:
    return {(p.exchange, p.phase): p.seconds for p in meter.phases}


def test_every_second_belongs_to_one_phase(clock: list[float]) -> None:
    meter = PhaseMeter()
    closed = []

    def work() -> Iterator[int]:
        try:
            for i in range(2):
                clock[0] += 10  # training
                before = meter.to("t", "broadcast")  # an engine asks for the next task in the middle of it
                clock[0] += 1
                meter.to(*before)
                yield i
        finally:
            closed.append(True)

    for _ in meter.during("t", "train", work()):
        clock[0] += 100  # of whoever was before
    clock[0] += 1000
    meter.stop()
    assert spent(meter) == {(None, "aggregate"): 1200.0, ("t", "train"): 20.0, ("t", "broadcast"): 2.0}
    assert closed == [True]


def test_who_stops_listening_closes_what_is_under_way(clock: list[float]) -> None:
    closed = []

    def work() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    items = PhaseMeter().during("t", "train", work())
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_memory_is_what_the_process_holds() -> None:
    before = resident()
    with mmap.mmap(-1, 60_000_000) as block:  # from the system: malloc may have kept as much from before
        block.write(b"\1" * len(block))
        assert resident() - before > 50_000_000
        meter = PhaseMeter()
        meter.stop()
        assert meter.phases[0].memory > len(block)
