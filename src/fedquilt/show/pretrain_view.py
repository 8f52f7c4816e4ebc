"""Pretraining under a progress bar, and what is told at its end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fedquilt.analysis.pretrain import Pretraining, pretrain
from fedquilt.analysis.pretrain_card import PICTURE, TEXT
from fedquilt.config.config import Config
from fedquilt.core.device import unused
from fedquilt.core.plain import Row
from fedquilt.errors import Stopped
from fedquilt.metrics.energy import Meter, in_words
from fedquilt.runs.energy import OFF
from fedquilt.show.progress import Bar, Progress
from fedquilt.terminal import say


def shown(config: Config, out: Path, how: Pretraining, fresh: bool, quiet: bool) -> Row:
    """Pretrain, say how it goes, and return the facts of the card."""
    with Progress(quiet) as progress:
        bars: list[Bar] = []

        def step(done: int, total: int, loss: float) -> None:
            if not bars:
                if devices := unused("It knows no other place yet.", "pretraining runs"):
                    progress.note(devices)
                bars.append(progress.bar("pretraining", total))
            bars[0].title = f"pretraining, loss {loss:.4f}"
            bars[0].round(done, {})

        meter = Meter.here() if config.meters.energy else Meter(why=OFF)
        try:
            with meter.phase("train"):
                facts = pretrain(config, out, how, fresh, step)
        except KeyboardInterrupt as error:
            raise Stopped(
                "Interrupted. The same command goes on with what was saved half a minute ago or later."
            ) from error
    note = "trained before" if not bars else "of this command" if meter.spent else meter.why
    spent = {"source": meter.source, "joules": meter.spent if bars else {}, "note": note}
    if not quiet:
        first, last = facts.curve[0], facts.curve[-1]
        scored = "" if last[1] is None or last[1] != last[1] else f", validation {first[1]:.4f} -> {last[1]:.4f}"
        say(
            f"{facts.rows} images, {len(facts.curve)} epochs, {facts.seconds:.1f} s"
            + ("" if bars else " (done before)")
        )
        say(f"loss {first[0]:.4f} -> {last[0]:.4f}{scored}")
        say(in_words(spent))
        say(f"sha256 {facts.sha256}")
        say(f"model   {out}: set model.pretrained to it")
        say(f"card    {out / TEXT}")
        say(f"picture {out / PICTURE}")
    return {"out": str(out), **asdict(facts), "energy": spent}
