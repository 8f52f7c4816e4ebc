"""The audit's results: a table (terminal, CSV, JSON) and a picture of originals beside reconstructions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor

from fedquilt.audit.cells import Finding, Plan
from fedquilt.results.plots import STYLE, subplots
from fedquilt.storage.files import storage, to_json, write_atomic
from fedquilt.terminal import say, show_table

NUMBERS = {
    "psnr": "PSNR dB",
    "psnr_blind": "blind dB",
    "ssim": "SSIM",
    "labels_right": "labels",
    "classes_precision": "precision",
    "classes_recall": "recall",
    "classes_exact": "exact",
    "feature_cosine": "cosine",
    "feature_error": "error",
    "mismatch": "mismatch",
}
SHOWN = {
    "dlg": ("psnr", "psnr_blind", "ssim", "labels_right"),
    "idlg": ("psnr", "psnr_blind", "ssim", "labels_right"),
    "peer": ("psnr", "psnr_blind", "ssim"),
    "labels": ("classes_precision", "classes_recall", "classes_exact"),
    "features": ("feature_cosine", "feature_error"),
}
Picture = NDArray[np.float32]
Row = dict[str, Any]  # of the table: words, and numbers by name
MOST_PICTURES = 8  # in one row of the grid


def rows(findings: Sequence[Finding]) -> list[Row]:
    """One row for each method, codec, defence and attack: means over the clients attacked."""
    found = []
    for (method, codec, defence, attack), group in _groups(findings).items():
        row: Row = {"method": method, "codec": codec, "defence": defence, "attack": attack}
        row |= {"clients": len(group), "bytes_up": float(np.mean([f.bytes_up for f in group]))}
        for name in NUMBERS:
            values = [v for f in group if (v := f.numbers.get(name)) is not None]
            row[name] = float(np.mean(values)) if values else None
        row["note"] = next((f.note for f in group if f.note), "")
        found.append(row)
    return found


def write(findings: Sequence[Finding], plan: Plan, folder: Path) -> dict[str, Any]:
    """audit.csv, audit.json, and pictures.png and .svg where there are any; returns what was written."""
    table = rows(findings)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_atomic(folder / "audit.csv", text.getvalue().encode())
    each = [
        {**{n: getattr(f, n) for n in ("method", "codec", "defence", "attack", "client", "note")}, **f.numbers}
        for f in findings
    ]
    found: dict[str, Any] = {"plan": asdict(plan), "rows": table, "clients": each, "folder": str(folder)}
    found["pictures"] = draw(findings, folder / "pictures")
    write_atomic(folder / "audit.json", to_json(found, indent=1).encode())
    return found


def draw(findings: Sequence[Finding], path: Path) -> str | None:
    """Originals above reconstructions, a strip for each search; None if the data are no images."""
    strips = _strips(findings)
    if not strips:
        return None
    width = max(strip.shape[1] / strip.shape[0] for _, strip in strips)
    with rc_context({**STYLE, "axes.grid": False}), storage(path.parent):
        figure, axes = subplots(len(strips), 1, figsize=(1.1 * width + 2.4, 1.2 * len(strips)), squeeze=False)
        for axis, (title, strip) in zip(axes.flat, strips, strict=True):
            axis.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_anchor("W")
            axis.set_axis_off()
            axis.text(1.02, 0.5, title, transform=axis.transAxes, fontsize=7, va="center")
        for suffix in (".png", ".svg"):
            figure.savefig(path.with_suffix(suffix), metadata={"Date": None} if suffix == ".svg" else None)
    return str(path.with_suffix(".png"))


def _strips(findings: Sequence[Finding]) -> list[tuple[str, Picture]]:
    strips = []
    for (method, codec, defence, attack), group in _groups(filter(_is_shown, findings)).items():
        sides: list[list[Picture]] = [[], []]
        for finding in group:
            for side, pictures in zip(sides, finding.pictures or (), strict=True):
                side += _images(pictures, finding.low, finding.high)
        told = [v for f in group if (v := f.numbers.get("psnr")) is not None]
        title = f"{method}, {codec}\n{defence}\n{attack}: {np.mean(told):.1f} dB"
        strips.append((title, np.concatenate([np.concatenate(side[:MOST_PICTURES], axis=1) for side in sides])))
    return strips


def _groups(findings: Iterable[Finding]) -> dict[tuple[str, str, str, str], list[Finding]]:
    """By method, codec, defence and attack."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.method, finding.codec, finding.defence, finding.attack), []).append(finding)
    return groups


def _is_shown(finding: Finding) -> bool:
    """Whether there are pictures, grey or in colour."""
    if finding.pictures is None:
        return False
    true, _ = finding.pictures
    return true.dim() == 4 and true.shape[1] in (1, 3)


def _images(pictures: Tensor, low: float, high: float) -> list[Picture]:
    """As matplotlib takes them: [height, width] or [height, width, 3], values from 0 to 1."""
    scaled = ((pictures - low) / (high - low)).clamp(0, 1).numpy()
    framed = np.pad(scaled, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=1.0)
    return [p.transpose(1, 2, 0) if len(p) == 3 else p[0] for p in framed]


def table(found: Sequence[Row], attack: str, notes: list[str]) -> Table:
    """The rows of one attack for the terminal; ``notes`` gains what is to be said below."""
    made = Table(title=attack, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("method", "codec", "defence"):
        made.add_column(name, overflow="fold")
    for name in (*SHOWN[attack], "bytes_up"):
        made.add_column(NUMBERS.get(name, "bytes"), justify="right", no_wrap=True)
    made.add_column("", style="dim")
    for row in found:
        if row["attack"] != attack:
            continue
        if row["note"] and row["note"] not in notes:
            notes.append(row["note"])
        mark = f"({notes.index(row['note']) + 1})" if row["note"] else ""
        numbers = [_figure(name, row[name]) for name in SHOWN[attack]]
        made.add_row(row["method"], row["codec"], row["defence"], *numbers, f"{row['bytes_up']:,.0f}", mark)
    return made


def show(found: dict[str, Any]) -> None:
    """Everything in the terminal."""
    notes: list[str] = []
    for attack in found["plan"]["attacks"]:
        show_table(table(found["rows"], attack, notes))
    for number, note in enumerate(notes, 1):
        say(f"({number}) {note}")
    if {"dlg", "idlg", "peer"} & set(found["plan"]["attacks"]):
        say("blind: the mean picture of all clients, scored alike; a search that is not above it learned nothing.")
    say(f"table   {found['folder']}/audit.csv, audit.json")
    if found["pictures"]:
        say(f"picture {found['pictures']}")


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if name.startswith("psnr") else f"{value:.3f}"
