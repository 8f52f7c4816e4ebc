"""``python -m fedquilt.compat.pfllib``: experiments in PFLlib's words.

It reads PFLlib's dataset folders, takes its arguments, and writes its .h5 results; what runs is fedquilt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fedquilt.compat.arguments import parsed
from fedquilt.compat.entry import told


def run(words: Sequence[str] | None = None) -> list[Path]:
    """All runs that the arguments ask for; returns their result files."""
    asked = parsed(words)  # before anything heavy is imported

    import torch

    from fedquilt import __version__
    from fedquilt.compat import play, results
    from fedquilt.compat.algorithms import algorithm_of, variant_of
    from fedquilt.compat.folders import federations, folder_of
    from fedquilt.runs.engines import make_engine

    results.h5py()  # to be missed before the training, not after it
    algorithm_of(asked.algorithm)
    folder = folder_of(asked)
    federation, new = federations(asked, folder)
    first = federation.site(federation.ids[0], 0).train
    shape = tuple(first.rows(first.all_rows()[:1]).x.shape[1:])
    devices = []
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
    earlier = [Path(asked.results_folder) / f"{name}_{n}.h5" for n in range(asked.prev)]
    missing = [str(path) for path in earlier if not path.is_file()]
    if missing:
        _say(f"runs before -pv are not in the summary, for their files are not there: {', '.join(missing)}")
    for line in results.summary([*(path for path in earlier if path.is_file()), *paths]):
        _say(line)
    _say(f"time per run: {sum(seconds) / len(seconds):.1f} s")
    return paths


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """The entry point."""
    told(run)


if __name__ == "__main__":
    main()
