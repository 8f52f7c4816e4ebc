"""Every method on Flower's own messages, in this process: the same numbers as on the local engine.

And a site gets no more than its clients would get there: their downloads, and nothing of or about anybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("flwr")

from conformance.cases import CASES, Case
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.jobs import EvaluationJob, NodeJobs, RunTerms, read
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.metrics.classify import classify
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.records.record import tensors_in
from fedquilt.rounds.client import Evaluation, Task
from fedquilt.rounds.rounds import Rounds
from helpers.nodes import Seen, flower, grid

Key = tuple[Any, ...]


class Noting(Local):
    """The local engine; ``noted`` has what each client was sent: its download, and the global model for an
    evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[Key, tuple[bytes | None, bytes | None]] = {}

    def updates(self, clients: Sequence[Any], task: Callable[[Any], Task]) -> Iterator[Any]:
        def noting(client: Any) -> Task:
            made = task(client)
            self.noted[made.exchange, client, made.round, made.again] = (made.down, None)
            return made

        return super().updates(clients, noting)

    def evaluations(self, clients: Sequence[Any], evaluation: Callable[[Any], Evaluation]) -> Iterator[Any]:
        def noting(client: Any) -> Evaluation:
            made = evaluation(client)
            self.noted[client, made.round] = (made.down, made.whole)
            return made

        return super().evaluations(clients, noting)


def check_the_view_of_sites(seen: Seen, noted: dict[Key, tuple[bytes | None, bytes | None]]) -> None:
    jobs = 0
    for part, kind, frames in seen:
        if kind.startswith("query."):
            assert frames.keys() <= {"run", "number"}
            continue
        named = {"jobs", "begin"}
        assert not list(tensors_in(read(frames, "begin", RunTerms)))
        for job in read(frames, "jobs", NodeJobs).jobs:
            jobs += 1
            assert job.client in {*part.ids, *part.evaluated}
            assert job.slot is None or len(job.slot) == 32  # the sha256 of a state that is at the site
            evaluation = isinstance(job, EvaluationJob)
            down, whole = noted[
                (job.client, job.round) if evaluation else (job.exchange, job.client, job.round, job.again)
            ]
            assert frames[f"frame-{job.down}"] == down
            named.add(f"frame-{job.down}")
            if evaluation and job.whole is not None:
                assert frames[f"frame-{job.whole}"] == whole
                named.add(f"frame-{job.whole}")
        assert frames.keys() == named
    assert jobs == len(noted)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_flower_equals_local(case: Case, place, tmp_path):
    if case.alone:
        with pytest.raises(InputError, match="cannot run on a real federation"):
            flower(grid(case.federation)).gather(2).pooled()
        return
    seen: Seen = []
    engine, local = flower(grid(case.federation, 2, tmp_path if place == "disk" else None, seen=seen)), Noting()
    score = reconstruct if case.guesses else classify
    there = Rounds(case.method, engine.gather(2), engine, Seed(3), score=score)
    here = Rounds(case.method, case.federation, local, Seed(3), score=score)
    for _ in range(2):
        logs = [rounds.play() for rounds in (here, there)]
        assert not logs[1].quarantined
        assert logs[0].bytes_up == logs[1].bytes_up
        assert logs[0].bytes_down == logs[1].bytes_down
    assert here.digest() == there.digest()
    clients = list(case.federation.evaluated)
    assert repr(here.evaluate(clients)) == repr(there.evaluate(clients))
    check_the_view_of_sites(seen, local.noted)
