"""``python -m fedquilt.compat.pfllib``: experiments in PFLlib's words.

It reads PFLlib's dataset folders, takes its arguments, and writes its .h5 results; what runs is fedquilt.

PFLlib's dataset folders, found by name in any case.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedquilt.compat.arguments import parsed
from fedquilt.compat.entry import told
from fedquilt.data import Federation, only_clients
from fedquilt.data.rows import ClientRows
from fedquilt.errors import InputError

ROOTS = ("dataset", "../dataset")


def folder_of(asked: argparse.Namespace) -> Path:
    """The folder of a data set: its name counts, not its case, hyphens or underscores."""
    roots = [Path(asked.dataset_root)] if asked.dataset_root else [Path(root) for root in ROOTS]
    there = _folders(roots)
    alike = _alike(there, asked.dataset)
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


def _folders(roots: Sequence[Path]) -> list[Path]:
    return [folder for root in roots if root.is_dir() for folder in sorted(root.iterdir()) if folder.is_dir()]


def _alike(there: Sequence[Path], name: str) -> list[Path]:
    exact = [folder for folder in there if folder.name == name]
    return exact or [folder for folder in there if _plain(folder.name) == _plain(name)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _few_shot(data: Federation, shots: int) -> Federation:
    """The same with each client's first ``shots`` training samples of every class, in the order of the file; 0 for
    all."""
    if not shots:
        return data
    labels, parts = data.columns["y"].numpy(), []
    for place in range(len(data.train)):
        rows, seen, kept = data.train[place].numpy(), Counter[int](), []
        for label in labels[rows].tolist():
            seen[label] += 1
            kept.append(seen[label] <= shots)
        parts.append(rows[kept])
    return replace(data, train=ClientRows.of(parts))


def federations(asked: argparse.Namespace, folder: Path) -> tuple[Federation, Federation | None]:
    """The clients that train, whose training samples are scored as 'valid'; and the newcomers."""
    whole = Federation.from_pfllib(folder, valid=0.0)
    wanted, new = asked.num_clients, asked.num_new_clients
    if wanted + new > len(whole.ids):
        extra = f" and -nnc {new}" if new else ""
        raise InputError(f"-nc {wanted}{extra}: {folder} holds {len(whole.ids)} clients.")
    if whole.classes is None or (asked.num_classes is not None and asked.num_classes != whole.classes):
        raise InputError(f"-ncl {asked.num_classes}: {folder} has {whole.classes} classes. Leave -ncl out.")
    part = _few_shot(only_clients(whole, whole.ids[:wanted]), asked.few_shot)
    newcomers = only_clients(whole, whole.ids[wanted : wanted + new]) if new else None
    return replace(part, evaluation_valid=part.train), newcomers


def run(words: Sequence[str] | None = None) -> list[Path]:
    """All runs that the arguments ask for; returns their result files."""
    asked = parsed(words)  # before anything heavy is imported

    import torch

    from fedquilt import __version__
    from fedquilt.compat import play, results
    from fedquilt.compat.algorithms import algorithm_of, variant_of
    from fedquilt.runs.engines import make_engine

    results.h5py()  # to be missed before the training, not after it
    algorithm_of(asked.algorithm)
    folder = folder_of(asked)
    federation, new = federations(asked, folder)
    first = federation.site(federation.ids[0], 0).train
    shape = tuple(first.rows(first.all_rows()[:1]).x.shape[1:])
    devices: list[str] = []
    if asked.device == "cuda":
        devices = [f"cuda:{number}" for number in asked.device_id] if torch.cuda.is_available() else []
        print(f"devices {', '.join(devices)}" if devices else "cuda: not available here, so the CPU is used")
    name = f"{folder.name}_{variant_of(asked)}_{asked.goal}"
    print(f"{variant_of(asked)} with {asked.model} on {folder}: {len(federation.ids)} clients, rows of {shape}")
    paths, seconds = [], []
    for number in range(asked.prev, asked.times):
        config = play.settings(asked, shape, number)
        method = play.method_for(asked, config, federation)
        play.check_newcomers(asked, method)
        print(f"run {number}", flush=True)
        began, engine = time.perf_counter(), make_engine(asked.engine, None, devices)
        try:
            scores, sent, rounds = play.played(asked, config, method, federation, engine, _say)
        finally:
            engine.close()
        about = {"fedquilt": __version__, "seed": number, "eval_gap": asked.eval_gap, "variant": variant_of(asked)}
        if new is not None:
            about["new_clients_accuracy"], said = play.newcomers(asked, method, rounds, new)
            _say(said)
        paths.append(Path(asked.results_folder) / f"{name}_{number}.h5")
        results.save(paths[-1], scores, sent, about)
        _say(f"{len(sent)} rounds {results.total(sent).words}")
        saved = play.save_model(rounds, Path(asked.save_folder_name) / f"{name}_{number}.safetensors")
        seconds.append(time.perf_counter() - began)
        _say(f"results {paths[-1]}" + (f", global model {saved}" if saved else ""))
    earlier = _there([Path(asked.results_folder) / f"{name}_{n}.h5" for n in range(asked.prev)])
    for line in results.summary([*earlier, *paths]):
        _say(line)
    _say(f"time per run: {sum(seconds) / len(seconds):.1f} s")
    return paths


def _there(earlier: list[Path]) -> list[Path]:
    """The results of earlier runs, as far as there are any."""
    missing = [str(path) for path in earlier if not path.is_file()]
    if missing:
        _say(f"runs before -pv are not in the summary, for their files are not there: {', '.join(missing)}")
    return [path for path in earlier if path.is_file()]


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """The entry point."""
    told(run)


if __name__ == "__main__":
    main()
