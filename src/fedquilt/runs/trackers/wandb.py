"""Weights & Biases. Where numbers go follows from its own environment (WANDB_MODE, WANDB_API_KEY, ...)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedquilt.core.plain import JSON
from fedquilt.errors import InputError
from fedquilt.runs.trackers import RunInfo


@dataclass
class WandB:
    """A run of Weights & Biases; a resumed run goes on under the same id.

    Args:
        project, entity, group: As they are called there.
        mode: 'online', 'offline' (files in the run's folder, for ``wandb sync``) or 'disabled'; by default WANDB_MODE.
    """

    project: str = "fedquilt"
    entity: str | None = None
    group: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: RunInfo) -> str:
        """Begin, or go on under the id of before."""
        try:
            import wandb
        except ImportError as error:
            raise InputError(f'wandb is not installed ({error}): pip install "fedquilt[track]".') from error
        place = run.place or uuid.uuid4().hex[:12]
        self._run = wandb.init(
            id=place,
            resume="allow",
            name=run.name,
            project=self.project,
            entity=self.entity,
            group=self.group,
            mode=self.mode,
            dir=str(run.folder),
            config=dict(run.config),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        return place

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """A step of the run."""
        self._run.log({"round": round, **numbers}, step=round)

    def finish(self, result: Mapping[str, JSON] | None) -> None:
        """What validation chose goes to the summary."""
        if result is not None:
            found = {f"best/{k}": v for k, v in result["best"].items() if isinstance(v, int | float)}
            self._run.summary.update({**found, "best_round": result["best_round"], "digest": result["digest"]})
        self._run.finish(exit_code=0 if result is not None else 1)
