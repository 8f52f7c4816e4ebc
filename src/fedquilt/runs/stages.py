"""What was learned at the end of each stage of a stream, kept in the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquilt.core.params import Params
from fedquilt.data import Stream
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.snapshot import Snapshot, personal_model
from fedquilt.storage.files import write_atomic

if TYPE_CHECKING:
    from fedquilt.runs.play import Run

FOLDER = "stages"


@record
class Stage:
    """The server's state after so many rounds, and the clients' models if there is no global one."""

    round: int
    state: Any
    models: tuple[Params, ...]


class StageFiles(Callback):
    """Writes ``stages/round-TTTT.safetensors`` in the last round of each stage of a stream, and of the run."""

    def __init__(self, run: Run, folder: Path) -> None:
        assert isinstance(run.federation, Stream)
        self.run, self.folder, self.clock = run, folder, run.federation.clock

    def on_round_end(self, snapshot: Snapshot) -> None:
        """Keep what was learned if a stage ended."""
        done = snapshot.round
        if self.run.over or self.clock.task(done) != self.clock.task(done - 1):
            frame = pack(Stage(done, snapshot.state, models_of(self.run.rounds)))
            write_atomic(self.folder / FOLDER / f"round-{done:04d}.safetensors", frame, self.folder)


def models_of(rounds: Rounds) -> tuple[Params, ...]:
    """The clients' models, where there is no global one and their states are here."""
    if rounds.method.global_model(rounds.state) is not None or rounds.engine.keeps_states:
        return ()
    return tuple(personal_model(rounds, client) for client in rounds.source.evaluated)


def stages_in(run: Path) -> list[Stage]:
    """All that were kept, in order."""
    return [unpack(path.read_bytes()) for path in sorted((run / FOLDER).glob("round-*.safetensors"))]
