"""Does a folder of images that does not fit in memory train in little of it, at the speed of its cache?

    python benchmarks/lazy_images.py [--images 50000] [--side 224] [--clients 100] [--folder DIR] [--docs]

Images are made (JPEG, noise-free patterns), divided over clients and trained on by a model so cheap that reading is
what takes the time: FedAvg on the mean colours of a 4 x 4 grid. Each part is measured in a process of its own: decoding
the images onto disk, and the rounds, each of which passes once over all training samples. Memory is the peak of the
resident sizes of that process and all its children, added. Asserted: both peaks are at most 1.5 GB; the second epoch
does not take longer than the first, which reads the decoded images for the first time, in seconds that are computed
(what a busy machine makes of seconds on the clock says nothing; a tenth is for noise); and on ``--checked`` images the
digest of the last model and the fingerprint of the data are the same as when all lie in memory. Told beside: how long
it takes to read as many rows in random order and do nothing with them. ``--docs`` writes the numbers into
docs/own-data.md.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from fedquilt import FedAvg, Federation, Net, run
from fedquilt.core.lazy import LazyColumn

MOST_GIGABYTES, CLASSES, PATTERNS = 1.5, 10, 500
PAGE = Path(__file__).resolve().parents[1] / "docs" / "own-data.md"
BEGIN, END = "<!-- lazy images: benchmarks/lazy_images.py --docs writes it -->", "<!-- end of lazy images -->"


class Colours(nn.Module):
    """The mean colours of a 4 x 4 grid, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))


def make(folder: Path, images: int, side: int) -> None:
    """Waves whose direction is their class, in colours and phases of their own; every 500th file holds the same one."""
    ramp = np.linspace(0, 1, side, dtype=np.float32)
    rng, patterns = np.random.default_rng(0), []
    for number in range(min(images, PATTERNS)):
        angle, phase, colour = np.pi * (number % CLASSES) / CLASSES, 0.4 * rng.random(), rng.random(3, dtype=np.float32)
        wave = np.sin(9 * (np.cos(angle) * ramp[:, None] + np.sin(angle) * ramp[None]) + phase)
        pixels, held = 127 + 90 * wave[:, :, None] * (0.5 + 0.5 * colour), io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(held, "jpeg", quality=60)
        patterns.append(held.getvalue())
    for label in range(CLASSES):
        (folder / f"{label}").mkdir(parents=True, exist_ok=True)
    for number in range(images):
        file = folder / f"{number % CLASSES}" / f"{number:06d}.jpg"
        if not file.exists():
            file.write_bytes(patterns[number % PATTERNS])


def federation(folder: Path, asked: argparse.Namespace, lazy: bool) -> Federation:
    """The images over the clients."""
    return Federation.from_folder(folder, clients=asked.clients, size=asked.side, lazy=lazy, test=0.1, valid=0.1)


def trained(data: Federation, rounds: int, engine: str) -> tuple[str, list[float], list[float]]:
    """The digest of the last model, the seconds of training of each round, and those that this process computed in
    each, scoring included, which do not depend on what else the machine does."""
    method, seconds, own = FedAvg(objective=Net(Colours)), [], [time.process_time()]
    for snapshot in run(method, data, rounds=rounds, engine=engine, seed=1):
        seconds.append(float(snapshot.metrics["train_seconds"]))
        own.append(time.process_time())
        digest = snapshot.digest()
    return digest, seconds, [after - before for before, after in pairwise(own)]


def bare(data: Federation) -> float:
    """Seconds to read every training sample once in random order, and nothing else."""
    column, began = data.columns["x"], time.perf_counter()
    assert isinstance(column, LazyColumn)
    for client in data.ids:
        rows = data.site(client, 0).train.all_rows()
        for batch in rows[torch.randperm(len(rows))].split(32):
            column.read(batch)
    return time.perf_counter() - began


def part(asked: argparse.Namespace) -> dict[str, object]:
    """One part of the measurement, in the process that is measured."""
    torch.set_num_threads(1)
    folder, began = Path(asked.folder) / "images", time.perf_counter()
    if asked.part == "decode":
        federation(folder, asked, lazy=True)
        return {"seconds": time.perf_counter() - began}
    if asked.part == "train":
        data = federation(folder, asked, lazy=True)
        opened = time.perf_counter() - began
        _, seconds, own = trained(data, asked.epochs, asked.engine)
        return {"open": opened, "epochs": seconds, "own": own, "bare": bare(data)}
    few = Path(asked.folder) / "few"
    make(few, asked.checked, asked.side)
    found = [federation(few, asked, lazy) for lazy in (True, False)]
    digests = [trained(data, 2, asked.engine)[0] for data in found]
    return {"same": digests[0] == digests[1] and found[0].fingerprint() == found[1].fingerprint(), "digest": digests[0]}


def resident(pid: int) -> int:
    """The resident size of a process and all its children, in bytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [int(c) for t in os.listdir(f"/proc/{pid}/task") for c in _children(pid, t)]
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident, children))


def _children(pid: int, thread: str) -> list[str]:
    return Path(f"/proc/{pid}/task/{thread}/children").read_text().split()


def measured(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """A part of the measurement, with the peak of its memory in GB."""
    command = [sys.executable, __file__, "--part", name, "--folder", asked.folder, "--engine", asked.engine]
    for option in ("images", "side", "clients", "epochs", "checked"):
        command += [f"--{option}", str(getattr(asked, option))]
    environment = {**os.environ, "FEDQUILT_CACHE": str(Path(asked.folder) / "cache")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    peak = 0

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.05)

    watching = threading.Thread(target=watch)
    watching.start()
    told = process.communicate()[0]
    watching.join()
    if process.returncode:
        sys.exit(f"{name} failed.")
    return {**json.loads(told.splitlines()[-1]), "gigabytes": peak / 1e9}


def write_page(asked: argparse.Namespace, decode: dict[str, Any], train: dict[str, Any], check: dict[str, Any]) -> None:
    """Put the numbers between the marks of the page."""
    size = f"{asked.images:,} images of {asked.side} x {asked.side}, {asked.clients} clients, engine `{asked.engine}`"
    epochs = ", ".join(f"{seconds:.0f}" for seconds in train["epochs"])
    rows = (
        (size, "seconds", "peak memory"),
        ("---", "---", "---"),
        ("decoding onto disk, once", f"{decode['seconds']:.0f}", f"{decode['gigabytes']:.2f} GB"),
        ("opening again", f"{train['open']:.1f}", ""),
        (f"epochs 1 to {asked.epochs} of a small model", epochs, f"{train['gigabytes']:.2f} GB"),
        ("reading the same rows in random order, and nothing else", f"{train['bare']:.0f}", ""),
        (f"same digest as in memory ({asked.checked:,} of them)", "yes" if check["same"] else "no", ""),
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checked", type=int, default=2_000)
    parser.add_argument("--engine", default="local", choices=["local", "workers"])
    parser.add_argument("--folder", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="Write the numbers into docs/own-data.md.")
    parser.add_argument("--part", choices=["decode", "train", "check"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(part(asked)))
        return
    with tempfile.TemporaryDirectory() as own:
        asked.folder = asked.folder or own
        make(Path(asked.folder) / "images", asked.images, asked.side)
        found = {name: measured(asked, name) for name in ("decode", "train", "check")}
    decode, train = found["decode"], found["train"]
    print(f"{asked.images:,} images of {asked.side} x {asked.side}, {asked.clients} clients, engine {asked.engine}")
    print(f"decoding onto disk: {decode['seconds']:.0f} s, peak {decode['gigabytes']:.2f} GB")
    print(f"opening again: {train['open']:.1f} s; epochs: {', '.join(f'{s:.1f}' for s in train['epochs'])} s")
    print(f"reading alone: {train['bare']:.1f} s; peak while training {train['gigabytes']:.2f} GB")
    print(f"digest as in memory, on {asked.checked:,} images: {found['check']['same']}")
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    if asked.docs:
        write_page(asked, **found)
    assert found["check"]["same"]
    assert asked.engine != "local" or train["own"][1] <= 1.1 * train["own"][0]
    assert max(decode["gigabytes"], train["gigabytes"]) <= MOST_GIGABYTES


if __name__ == "__main__":
    main()
