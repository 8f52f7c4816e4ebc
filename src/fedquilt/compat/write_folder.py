"""``python -m fedquilt.compat.write_folder``: the division of a recipe as a folder in PFLlib's layout.

The rows of each client go to DIR/train/I.npz and DIR/test/I.npz, as the dict of x and y called data that PFLlib reads;
DIR/config.json tells the numbers of clients and classes, DIR/data_log how many rows of which class each client has.
PFLlib itself, ``fedquilt.compat.pfllib`` and ``data.path`` read it.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.compat.entry import told
from fedquilt.config.config import Config, load
from fedquilt.config.data import federation_of
from fedquilt.core.table import Table
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.storage.files import to_json, write_atomic


def write(federation: Federation, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
    """Clients become 0, 1, ... in their order; validation samples go to train, for PFLlib has none.

    ``settings`` say how the division was made, in the words of PFLlib's config.json.
    """
    if (folder / "config.json").exists():
        raise InputError(f"'{folder}' holds a division already. Give another folder, or remove it.")
    counts: list[list[list[int]]] = []
    sizes: dict[str, list[int]] = {"train": [], "test": []}
    for number, client in enumerate(federation.ids):
        site, test = federation.site(client, 0), federation.evaluation(client, "test")
        if test is None:
            raise InputError(f"Client {client!r} has no test samples; PFLlib's layout needs some. Set data.test > 0.")
        tables = [site.train] if site.valid is None else [site.train, site.valid]
        parts = {"train": tables, "test": [test]}
        labels = {part: _saved(folder / part / f"{number}.npz", held) for part, held in parts.items()}
        values, found = np.unique(np.concatenate(list(labels.values())), return_counts=True)
        counts.append([[int(v), int(n)] for v, n in zip(values, found, strict=True)])
        for part, y in labels.items():
            sizes[part].append(len(y))
    about = {
        "num_clients": len(federation.ids),
        "num_classes": federation.classes,
        "non_iid": None,
        "balance": None,
        "partition": None,
        "Size of samples for labels in clients": counts,
        "alpha": None,
        "batch_size": None,
        **(settings or {}),
    }
    write_atomic(folder / "data_log", _log(counts, sizes).encode())
    write_atomic(folder / "config.json", to_json(about).encode())


def _log(counts: Sequence[Sequence[Sequence[int]]], sizes: Mapping[str, Sequence[int]]) -> str:
    """The division for people: a paragraph for each client, then the sums."""
    lines = []
    for client, held in enumerate(counts):
        rows, classes = sum(n for _, n in held), " ".join(str(label) for label, _ in held)
        lines.append(f"Client {client}\t Size of data: {rows}\t Labels:  [{classes}]")
        lines += [f"\t\t Samples of labels:  {[tuple(pair) for pair in held]}", "-" * 50]
    lines.append(f"Total number of samples: {sum(map(sum, sizes.values()))}")
    lines += [f"The number of {part} samples: {list(rows)}" for part, rows in sizes.items()]
    return "\n".join(lines) + "\n"


def partition_settings(config: Config) -> dict[str, Any]:
    """How a recipe divides rows, as PFLlib's config.json has it."""
    chosen = config.data.partition
    even = chosen.kind == "iid"
    return {
        "non_iid": not even,
        "balance": even,
        "partition": chosen.kind,
        "alpha": chosen.options.get("alpha"),
        "batch_size": config.train.batch_size,
    }


def _saved(path: Path, tables: Sequence[Table]) -> Any:
    batches = [table.whole() for table in tables]
    x, y = (np.concatenate([getattr(b, name).numpy() for b in batches]) for name in ("x", "y"))
    content = io.BytesIO()
    data: Any = {"x": x, "y": y}
    np.savez_compressed(content, data=data)  # numpy pickles the dict, which is what PFLlib reads
    write_atomic(path, content.getvalue())
    return y


def run(words: Sequence[str] | None = None) -> None:
    """Read the arguments, divide, write."""
    parser = argparse.ArgumentParser(prog="python -m fedquilt.compat.write_folder", description=__doc__)
    parser.add_argument("recipe", help="a .toml file")
    parser.add_argument("overrides", nargs="*", help="settings to change, for example data.clients=5")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="for example dataset/Digits")
    asked = parser.parse_args(words)
    config = load(asked.recipe, asked.overrides)
    federation = federation_of(config)
    if not isinstance(federation, Federation):
        raise InputError("PFLlib's folders hold one division of rows, and this recipe has a stream of tasks.")
    write(federation, asked.to, partition_settings(config))
    print(f"{len(federation.ids)} clients, {federation.classes} classes: {asked.to}")


def main() -> None:
    """The entry point."""
    told(run)


if __name__ == "__main__":
    main()
