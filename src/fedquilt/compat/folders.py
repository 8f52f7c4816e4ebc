"""PFLlib's dataset folders, found by name in any case."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fedquilt.core.errors import InputError
from fedquilt.data import Federation, only_clients
from fedquilt.data.rows import Rows

ROOTS = ("dataset", "../dataset")


def folder_of(asked: argparse.Namespace) -> Path:
    """The folder of a data set: its name counts, not its case, hyphens or underscores."""
    roots = [Path(asked.dataset_root)] if asked.dataset_root else [Path(root) for root in ROOTS]
    there = [folder for root in roots if root.is_dir() for folder in sorted(root.iterdir()) if folder.is_dir()]
    exact = [folder for folder in there if folder.name == asked.dataset]
    alike = exact or [folder for folder in there if _plain(folder.name) == _plain(asked.dataset)]
    if not alike:
        names = ", ".join(folder.name for folder in there) or "no folder at all"
        raise InputError(
            f"-data {asked.dataset}: not below {' or '.join(str(r) for r in roots)}, where there is {names}. "
            "Make it with PFLlib's generate_NAME.py, write one from a recipe (python -m fedquilt.compat.write_folder "
            f"RECIPE.toml --to {roots[0]}/{asked.dataset}), or give --dataset_root."
        )
    if len({folder.name for folder in alike}) > 1:
        raise InputError(f"-data {asked.dataset} could be {' or '.join(f.name for f in alike)}. Write it as it is.")
    return alike[0]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _few_shot(data: Federation, shots: int) -> Federation:
    """The same with each client's first ``shots`` training rows of every class, in the order of the file; 0 for all."""
    if not shots:
        return data
    labels, parts = data.columns["y"].numpy(), []
    for place in range(len(data.train)):
        rows, seen, kept = data.train[place].numpy(), Counter[int](), []
        for label in labels[rows].tolist():
            seen[label] += 1
            kept.append(seen[label] <= shots)
        parts.append(rows[kept])
    return replace(data, train=Rows.of(parts))


def federations(asked: argparse.Namespace, folder: Path) -> tuple[Federation, Federation | None]:
    """The clients that train, whose training rows are scored as 'valid'; and the newcomers."""
    whole = Federation.from_pfllib(folder, valid=0.0)
    wanted, new = asked.num_clients, asked.num_new_clients
    if wanted + new > len(whole.ids):
        extra = f" and -nnc {new}" if new else ""
        raise InputError(f"-nc {wanted}{extra}: {folder} holds {len(whole.ids)} clients.")
    if whole.classes is None or (asked.num_classes is not None and asked.num_classes != whole.classes):
        raise InputError(f"-ncl {asked.num_classes}: {folder} has {whole.classes} classes. Leave -ncl out.")
    part = _few_shot(only_clients(whole, whole.ids[:wanted]), asked.few_shot)
    newcomers = only_clients(whole, whole.ids[wanted : wanted + new]) if new else None
    return replace(part, exam_valid=part.train), newcomers
