"""What was learned at the end of each stage of a stream, kept in the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedquilt.core.params import Params
from fedquilt.core.record import pack, record, unpack
from fedquilt.data.streams import Stream
from fedquilt.engines.rounds import Rounds
from fedquilt.runs.files import write_atomic
from fedquilt.runs.snapshot import personal_model

FOLDER = "stages"


@record
class Stage:
    """The server's state after so many rounds, and the clients' models if there is no global one."""

    round: int
    state: Any
    models: tuple[Params, ...]


class Stages:
    """Writes ``stages/round-TTTT.safetensors`` in the last round of each stage of the stream's clock."""

    def __init__(self, run: Path, stream: Stream) -> None:
        self.run, self.stream = run, stream

    def note(self, rounds: Rounds, last: bool) -> None:
        """A round was played; ``last`` if none follows."""
        clock, done = self.stream.clock, rounds.done
        if last or clock.task(done) != clock.task(done - 1):
            frame = pack(Stage(done, rounds.state, models_of(rounds)))
            write_atomic(self.run / FOLDER / f"round-{done:04d}.safetensors", frame, self.run)


def models_of(rounds: Rounds) -> tuple[Params, ...]:
    """The clients' models, where there is no global one and their states are here."""
    if rounds.method.global_model(rounds.state) is not None or rounds.engine.keeps_states:
        return ()
    return tuple(personal_model(rounds, client) for client in rounds.source.examined)


def stages_in(run: Path) -> list[Stage]:
    """All that were kept, in order."""
    return [unpack(path.read_bytes()) for path in sorted((run / FOLDER).glob("round-*.safetensors"))]
