"""Runs that nobody trains: their folders are held and grow by the real code, round by round, as fast as one likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedquilt.config.config import dump, parse
from fedquilt.storage.files import to_json
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.journal import Journal


class Growing:
    """A run in a folder, held until it is let go of."""

    def __init__(self, folder: Path, rounds: int, clients: int = 5, seed: int = 0) -> None:
        folder.mkdir(parents=True)
        config = parse({"name": "growing", "rounds": rounds, "seed": seed})
        (folder / "config.toml").write_text(dump(config))
        self.folder, self.clients, self.round = RunFolder(folder), clients, 0
        self.folder.open()
        self.journal = Journal(folder)
        self.journal.say("begun", 0)

    def play(self, reason: str | None = None, accuracy: float | None = None) -> dict[str, Any]:
        """One more round; with a reason, client 0 is left out of it. Gives its row."""
        self.round += 1
        value = accuracy if accuracy is not None else 1 - 0.9**self.round
        row = {
            "round": self.round,
            "clients": self.clients,
            "train_loss": 1 - value,
            "test_loss": 1.1 - value,
            "test_accuracy": value,
            "test_accuracy_worst10": value / 2,
            "valid_accuracy": value,
            "bytes_up": 1000,
            "bytes_down": 2000,
            "seconds": 0.1,
        }
        self.journal.step(self.round, "train", self.clients, self.clients)
        scores = [
            {
                "round": self.round,
                "client": c,
                "model": "deployed",
                "split": "test",
                "rows": 9.0,
                "accuracy": value,
                "loss": 1 - value,
            }
            for c in range(self.clients)
        ]
        self.folder.log("metrics/clients.jsonl", scores)
        if reason is not None:
            entry = {"round": self.round, "exchange": "train", "client": 0, "reason": reason}
            self.folder.log("dropped.jsonl", [entry])
        self.folder.log("metrics/rounds.jsonl", [row])
        return row

    def finish(self) -> None:
        """Write a result, and let go."""
        result = {"rounds": self.round, "best_round": self.round, "stopped_early": False}
        (self.folder.path / "result.json").write_text(to_json(result))
        self.journal.say("finished", self.round)
        self.close()

    def close(self) -> None:
        """Let go without a word, as a process that is killed."""
        self.journal.close()
        self.folder.close()
