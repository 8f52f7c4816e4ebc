"""What a round took, by exchange and phase: seconds, bytes, memory, joules, and virtual seconds."""

from __future__ import annotations

from collections.abc import Mapping

from fedquilt.config.links import Network
from fedquilt.core.plain import Row
from fedquilt.rounds.log import ClientUpdate, Quarantine, RoundLog
from fedquilt.rounds.phases import PHASES, Phase, resident
from fedquilt.runs.virtual_clock import NEEDED, PARTS, TimedExchange, VirtualClock, server_seconds

LOG = "metrics/phases.jsonl"


class Meters:
    """Makes the rows of ``metrics/phases.jsonl``, and the numbers of a round that come from them.

    Seconds by phase are the server's; what a client took was measured where its work was done, and is in the log of
    client updates. Memory is that of the server's process: those of worker processes are in ``result.json``.
    """

    def __init__(self, network: Network | None = None) -> None:
        self.clock = None if network is None else VirtualClock(network)
        self.virtual: float | None = None if network is None else 0.0  # seconds since the first round
        self.rows: list[Row] = []  # of the last round
        self._spent: dict[str, float] = {}

    def note(self, log: RoundLog, evaluated: float | None, spent: Mapping[str, float]) -> None:
        """Make the rows of a round; scoring took ``evaluated`` seconds, and the run so far ``spent`` joules."""
        phases = list(log.phases)
        if evaluated is not None:
            phases.append(Phase(None, "evaluate", evaluated, resident()))
        trips, sent = self._trips(log), _sent(log)
        rows = [self._row(log.round + 1, phase, trips, sent) for phase in phases]
        if self.virtual is not None:
            self.virtual += sum(trip.seconds for trip in trips)
        self.rows = rows + self._joules(rows, spent)

    def numbers(self) -> dict[str, float]:
        """For the row of the round: seconds by phase, and virtual ones since the first round."""
        found = {f"seconds_{phase}": 0.0 for phase in PHASES}
        for row in self.rows:
            found[f"seconds_{row['phase']}"] += row.get("seconds", 0.0)
        return found if self.virtual is None else {**found, "virtual_seconds": self.virtual}

    def _trips(self, log: RoundLog) -> list[TimedExchange]:
        if self.clock is None:
            return []
        updates = ({name: getattr(update, name) for name in NEEDED} for update in log.updates)
        return self.clock.trips(updates, server_seconds(log.phases))

    def _row(
        self, round: int, phase: Phase, trips: list[TimedExchange], sent: Mapping[tuple[str | None, str], int]
    ) -> Row:
        row: Row = {"round": round, **vars(phase)}
        if phase.phase in ("broadcast", "upload"):
            row["bytes"] = sent.get((phase.exchange, phase.phase), 0)
        if self.clock is not None and phase.exchange is not None and phase.phase in PARTS:
            row["virtual_seconds"] = sum(getattr(t, phase.phase) for t in trips if t.exchange == phase.exchange)
        return row

    def _joules(self, rows: list[Row], spent: Mapping[str, float]) -> list[Row]:
        """Joules go to the row of their phase; those of several exchanges, which counters do not tell apart, to one of
        its own."""
        more = []
        for phase, total in spent.items():
            here, fits = total - self._spent.get(phase, 0.0), [r for r in rows if r["phase"] == phase and r["seconds"]]
            if phase == "aggregate":  # all of the server's own work
                fits = []
            if len(fits) == 1:
                fits[0]["joules"] = here
            elif here:
                more.append({"round": rows[0]["round"], "exchange": None, "phase": phase, "joules": here})
        self._spent = dict(spent)
        return more

    def restore(self, spent: Mapping[str, float], virtual: float | None) -> None:
        """Go on from a snapshot."""
        self._spent = dict(spent)
        if self.virtual is not None:
            self.virtual = virtual or 0.0


def _sent(log: RoundLog) -> dict[tuple[str | None, str], int]:
    """The bytes of each exchange, down and up, also of replies that were left out."""
    found: dict[tuple[str | None, str], int] = {}
    trips: list[ClientUpdate | Quarantine] = [*log.updates, *log.quarantined]
    for one in trips:
        for phase, size in (("broadcast", one.bytes_down), ("upload", one.bytes_up)):
            found[one.exchange, phase] = found.get((one.exchange, phase), 0) + size
    return found
