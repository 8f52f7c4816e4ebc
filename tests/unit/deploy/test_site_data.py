"""The data a site brings: every form that a recipe's data.path takes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedquilt.deploy.site import SiteSettings, is_function, read_site, source_of
from fedquilt.errors import InputError
from helpers.command import fedquilt

RECIPE = """
rounds = 1

[model]
kind = "logistic"

[train]
batch_size = 8
"""
HEAD = "age,pressure,outcome,clinic\n"
ROWS = "61,141,ill,oslo\n45,120,well,bergen\n" * 10
DRAW = np.random.default_rng(0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the same site in all forms: 20 rows, two classes, two people."""
    x, y = DRAW.normal(size=(20, 2)).astype("float32"), np.arange(20) % 2
    np.savez(tmp_path / "site.npz", x=x, y=y)
    np.savez(tmp_path / "people.npz", x=x, y=y, clinic=np.where(y == 0, "oslo", "bergen"))
    np.savez(tmp_path / "split.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    (tmp_path / "site.csv").write_text(HEAD + ROWS)
    (tmp_path / "numbered.csv").write_text("age,label\n" + "61,1\n45,0\n" * 10)
    for i in range(20):
        (folder := tmp_path / "photos" / ("cat" if i % 2 else "dog")).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 9), (10 * i, 0, 0)).save(folder / f"{i}.png")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def site(place: Path, data: str, **settings: Any) -> Any:
    return source_of(SiteSettings(data=str(place / data), state=str(place / "state"), **settings))


@pytest.mark.parametrize(
    ("data", "settings", "shape"),
    [
        ("site.npz", {"name": "oslo"}, (2,)),
        ("numbered.csv", {"name": "oslo"}, (1,)),
        ("photos", {"name": "oslo", "size": 8, "classes": 2}, (3, 8, 8)),
    ],
)
def test_one_client_from_every_form(place: Path, data: str, settings: dict[str, Any], shape: tuple[int, ...]) -> None:
    found = site(place, data, **settings)
    assert found.ids == ("oslo",)
    assert found.size("oslo") == 14  # of 20 rows, 20 % are for the test and 10 % for validation
    assert tuple(found.site("oslo", 0).train.whole().x.shape[1:]) == shape


def test_parquet(place: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"age": [61.0, 45.0] * 10, "label": [0, 1] * 10}), place / "site.parquet")
    assert site(place, "site.parquet", name="oslo").size("oslo") == 14


@pytest.mark.parametrize("data", ["site.csv", "people.npz"])
def test_people_of_a_site_are_its_clients(place: Path, data: str) -> None:
    more = {"label": "outcome"} if data == "site.csv" else {}
    assert site(place, data, user="clinic", classes=2, **more).ids == ("bergen", "oslo")


def test_own_test_rows_are_kept(place: Path) -> None:
    found = site(place, "split.npz", name="oslo")
    assert found.size("oslo") == 20
    assert len(found.evaluation("oslo", "test").whole().y) == 6


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        ("missing.npz", {"name": "oslo"}, "There is no file .*missing.npz"),
        ("site.npz", {}, "whose rows are whose. Name the site: --name"),
        ("site.npz", {"name": "oslo", "label": "outcome"}, "label = 'outcome' is for tables"),
        ("site.npz", {"name": "oslo", "size": 8}, "size = 8 is for folders of images"),
        ("site.csv", {"name": "oslo", "user": "clinic", "label": "outcome"}, "--name makes this site one client"),
        ("site.csv", {"user": "clinic", "label": "result", "classes": 2}, "no column 'result'. Its columns are age,"),
        ("site.csv", {"user": "clinic", "label": "outcome"}, "has class names, 2 of them, and --classes is not given"),
        ("photos", {"name": "oslo", "classes": 3}, "has class names, 2 of them, and --classes is 3"),
    ],
)
def test_what_is_refused(place: Path, data: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        site(place, data, **settings)


def test_a_function_reads_its_own_data() -> None:
    assert is_function("helpers.toy:digits")
    assert not is_function("C:/data/site.npz")
    assert not is_function("site.npz")
    assert len(source_of(SiteSettings(data="helpers.toy:digits", state=".")).ids) == 4
    with pytest.raises(InputError, match="--label says how a file or folder is read"):
        source_of(SiteSettings(data="helpers.toy:digits", state=".", label="y"))
    with pytest.raises(InputError, match="cannot be imported"):
        source_of(SiteSettings(data="helpers.nowhere:digits", state="."))


def test_settings_survive_their_file(place: Path) -> None:
    own = SiteSettings(data="a.csv", user="clinic", label='out"come', size=3, state="s", classes=2, test=0.5)
    own.write(place / "site.toml")
    assert read_site(place / "site.toml") == own


@pytest.mark.parametrize(
    ("data", "options", "weights"),
    [
        ("site.npz", ["--name", "oslo"], [2, 2]),
        ("numbered.csv", ["--name", "oslo"], [2, 1]),
        ("site.csv", ["--user", "clinic", "--label", "outcome", "--classes", "2"], [2, 2]),
        ("photos", ["--name", "oslo", "--size", "8", "--classes", "2"], [2, 192]),
    ],
)
def test_a_dry_run_of_every_form(place: Path, data: str, options: list[str], weights: list[int]) -> None:
    said = fedquilt("join", "--data", place / data, *options, "--dry-run", place / "recipe.toml", "--json")
    assert said.code == 0, said.err
    tensors = said.json["exchanges"]["train"]["tensors"]
    assert weights in [t["shape"] for t in tensors]
    assert "the sha256 of the state" in said.json["with each upload"]
    assert "versions" in said.json["introduction"]


def test_a_dry_run_asks_for_the_models_of_the_whole_federation(place: Path) -> None:
    (place / "recipe.toml").write_text(RECIPE + "\n[flower]\nclasses = 5\n")
    said = fedquilt("join", "--data", place / "site.npz", "--name", "a", "--dry-run", place / "recipe.toml", "--json")
    assert [5, 2] in [t["shape"] for t in said.json["exchanges"]["train"]["tensors"]]


def test_a_dry_run_goes_on_until_every_exchange_has_happened(place: Path) -> None:
    late = 'rounds = {}\n[method]\nkind = "hcfl"\ninitial_rounds = 5\nn_clusters = 1\n[model]\nkind = "logistic"\n'
    words = ("join", "--data", place / "people.npz", "--user", "clinic", "--dry-run", place / "recipe.toml")
    (place / "recipe.toml").write_text(late.format(8))
    found = fedquilt(*words, "--json").json
    assert set(found["exchanges"]) == {"columns", "train", "discover"}
    assert "not seen" not in found
    (place / "recipe.toml").write_text(late.format(4))
    assert fedquilt(*words, "--json").json["not seen"] == {"rounds": 4, "exchanges": ["discover"]}
    assert "also has 'discover', which did not happen in 4 rounds with this site alone." in fedquilt(*words).out


def test_a_dry_run_shows_the_largest_upload_and_how_small_others_are(place: Path) -> None:
    coded = '[method]\nkind = "hgls"\ngradient_codec = "hgc"\nlossless = "adaptive"\n'
    coded += '[model]\nkind = "mlp"\nhidden = [400]\n'
    (place / "recipe.toml").write_text(coded)
    words = ("join", "--data", place / "people.npz", "--user", "clinic", "--dry-run", place / "recipe.toml")
    found = fedquilt(*words, "--json").json
    sizes = {name: (part["at least"], part["bytes in all"]) for name, part in found["exchanges"].items()}
    assert all(least <= most for least, most in sizes.values())
    varied = [(least, most) for least, most in sizes.values() if least < most]
    assert varied
    assert all(f"({least:,} to {most:,} bytes)" in fedquilt(*words).out for least, most in varied)
    assert found["introduction"]["clients that are scored"] == found["introduction"]["clients"]


def test_a_node_needs_a_server(place: Path) -> None:
    said = fedquilt("join", "--data", place / "site.npz", "--name", "oslo", "--json")
    assert (said.code, json.loads(said.out)["message"]) == (
        2,
        "Give the address of the server: --superlink server.example.org:8000.",
    )
