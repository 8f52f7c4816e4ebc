"""``python -m fedquilt.compat.write_folder``: the division of a recipe as a folder in PFLlib's layout.

The rows of each client go to DIR/train/I.npz and DIR/test/I.npz as plain arrays x and y (PFLlib pickles a dict of
them), DIR/config.json tells the numbers of clients and classes. ``fedquilt.compat.pfllib`` and ``data.path`` read it.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.compat.entry import told
from fedquilt.core.errors import InputError
from fedquilt.core.table import Table
from fedquilt.runs.config import load
from fedquilt.runs.data import federation_of
from fedquilt.runs.files import to_json, write_atomic


def write(federation: Any, folder: Path) -> None:
    """Clients become 0, 1, ... in their order; validation rows go to train, for PFLlib has none."""
    if (folder / "config.json").exists():
        raise InputError(f"'{folder}' holds a division already. Give another folder, or remove it.")
    counts = []
    for number, client in enumerate(federation.ids):
        site, test = federation.site(client, 0), federation.exam(client, "test")
        if test is None:
            raise InputError(f"Client {client!r} has no test rows; PFLlib's layout needs some. Set data.test > 0.")
        tables = [site.train] if site.valid is None else [site.train, site.valid]
        labels = [_saved(folder / "train" / f"{number}.npz", tables), _saved(folder / "test" / f"{number}.npz", [test])]
        values, sizes = np.unique(np.concatenate(labels), return_counts=True)
        counts.append([[int(v), int(n)] for v, n in zip(values, sizes, strict=True)])
    about = {
        "num_clients": len(federation.ids), "num_classes": federation.classes,
        "Size of samples for labels in clients": counts,
    }  # fmt: skip
    write_atomic(folder / "config.json", to_json(about).encode())


def _saved(path: Path, tables: Sequence[Table]) -> Any:
    batches = [table.whole() for table in tables]
    x, y = (np.concatenate([getattr(b, name).numpy() for b in batches]) for name in ("x", "y"))
    content = io.BytesIO()
    np.savez_compressed(content, x=x, y=y)
    write_atomic(path, content.getvalue())
    return y


def run(words: Sequence[str] | None = None) -> None:
    """Read the arguments, divide, write."""
    parser = argparse.ArgumentParser(prog="python -m fedquilt.compat.write_folder", description=__doc__)
    parser.add_argument("recipe", help="a .toml file")
    parser.add_argument("overrides", nargs="*", help="settings to change, for example data.clients=5")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="for example dataset/Digits")
    asked = parser.parse_args(words)
    federation = federation_of(load(asked.recipe, asked.overrides))
    write(federation, asked.to)
    print(f"{len(federation.ids)} clients, {federation.classes} classes: {asked.to}")


def main() -> None:
    """The entry point."""
    told(run)


if __name__ == "__main__":
    main()
