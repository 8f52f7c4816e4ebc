"""Data that have no labels: who may divide them, what may be asked of them, and who learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedquilt.config.config import dump, parse
from fedquilt.config.data import federation_of
from fedquilt.core.seed import Seed
from fedquilt.data import Dirichlet, DirichletSizes, Federation, LogNormal, PowerLaw
from fedquilt.deploy.dry_run import leaving
from fedquilt.deploy.site import SiteSettings, source_of
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.metrics.reconstruct import reconstruct
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import method_of, run_of

X = np.random.default_rng(0).random((60, 1, 8, 8), dtype=np.float32)
MAE = {"kind": "mae", "patch": 4, "width": 16, "depth": 1, "heads": 2, "decoder_width": 16, "bottleneck": 4}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.savez(tmp_path / "bare.npz", x=X, user=np.arange(60) % 3)
    return tmp_path / "bare.npz"


def recipe(file: Path, method: Any = "podfcssv", **data: Any) -> Any:
    return parse(
        {
            "rounds": 1,
            "data": {"path": str(file), **data},
            "model": MAE,
            "method": method,
            "train": {"batch_size": 8},
            "engine": {"kind": "local"},
        }
    )


@pytest.mark.parametrize("partition", [None, LogNormal(1.0), PowerLaw(1.0), DirichletSizes(1.0)], ids=str)
def test_rows_are_divided_by_everything_but_labels(partition: Any) -> None:
    made = Federation.from_arrays(X, None, partition, 4)
    assert made.classes is None
    assert set(made.columns) == {"x"}
    labelled = Federation.from_arrays(X, np.zeros(60, np.int64), partition, 4)
    assert [made.size(c) for c in made.ids] == [labelled.size(c) for c in labelled.ids]


def test_labels_that_are_not_there_cannot_divide() -> None:
    with pytest.raises(InputError, match="Dirichlet divides rows by their labels, and the data have none"):
        Federation.from_arrays(X, None, Dirichlet(0.5), 4)


def test_clients_with_and_without_labels_do_not_mix() -> None:
    assert Federation.from_clients({"a": (X, None), "b": (X, None)}).classes is None
    with pytest.raises(InputError, match="Some clients have labels and others have none"):
        Federation.from_clients({"a": (X, None), "b": (X, np.zeros(60, np.int64))})


def test_a_recipe_runs_from_a_file_of_inputs(file: Path, tmp_path: Path) -> None:
    run = run_of(recipe(file, user="user"), Local(), tmp_path / "run")
    (snapshot,) = run
    assert snapshot.metrics["test_loss"] > 0
    assert snapshot.metrics["clients"] == 3


@pytest.mark.parametrize("method", ["fedavg", "fedloge", "hgls", "fedproto"])
def test_a_method_that_needs_labels_says_so(file: Path, method: str) -> None:
    config = parse({"data": {"path": str(file), "user": "user"}, "method": method})
    with pytest.raises(InputError, match=rf"The data have no labels, and {method} learns from labels.*podfcssv"):
        method_of(config, federation_of(config))


@pytest.mark.parametrize("data", [{"common_test": 0.2}, {"common_valid": 0.2}, {"unlabelled": 0.5}], ids=str)
def test_what_goes_by_labels_is_refused(file: Path, data: dict[str, float]) -> None:
    with pytest.raises(InputError, match=rf"data\.{next(iter(data))} goes by labels, and .*bare\.npz has none"):
        federation_of(recipe(file, **data))


def test_a_folder_of_images_without_classes(tmp_path: Path) -> None:
    for number in range(6):
        Image.fromarray(np.full((8, 8), 40 * number, np.uint8)).save(tmp_path / f"{number}.png")
    made = Federation.from_folder(tmp_path, size=8, clients=2, test=0.0, valid=0.0)
    assert (made.classes, sum(made.size(c) for c in made.ids)) == (None, 6)


def test_a_site_without_labels(file: Path) -> None:
    site: Any = source_of(SiteSettings(data=str(file), user="user", state=str(file.parent / "state")))
    assert site.ids == (0, 1, 2)
    assert site.classes is None


def test_a_dry_run_tells_what_would_leave_a_site_without_labels(file: Path, tmp_path: Path) -> None:
    settings = SiteSettings(data=str(file), user="user", state=str(tmp_path / "state"))
    (tmp_path / "recipe.toml").write_text(dump(recipe(file, {"kind": "podfcssv", "k_init_prototypes": 2})))
    told = leaving(settings, tmp_path / "recipe.toml")
    sent = [part["name"] for part in told["exchanges"]["train"]["tensors"]]
    assert all("adapter" in name or "prototype" in name or "count" in name or "mean" in name for name in sent), sent
    assert told["scores"] == ["test: loss_sum", "test: rows", "valid: loss_sum", "valid: rows"]


def test_sites_without_labels_on_flower_give_the_numbers_of_local(file: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.nodes import flower, grid

    config = recipe(file, {"kind": "podfcssv", "k_init_prototypes": 2}, user="user")
    source = federation_of(config)
    engine = flower(grid(source))
    there = engine.gather(2)
    digests = []
    for where, used in ((source, Local()), (there, engine)):
        rounds = Rounds(method_of(config, where), where, used, Seed(3), score=reconstruct)
        rounds.play()
        digests.append(rounds.digest())
    assert digests[0] == digests[1]
