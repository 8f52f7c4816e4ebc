"""Codecs from recipes: on every method, refused before the run where they cannot work, and every byte accounted for."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.codecs import check_codecs, codec_of
from fedquilt.config.config import Config, dump, parse
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import ConfigError, InputError
from fedquilt.methods.compressed import Compressed
from fedquilt.pieces.codecs import chain, error_feedback, half, hgc, on, sign, together, top_k
from fedquilt.registry import CODECS, METHODS
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import federation_of, method_of
from fedquilt.runs.runner import run
from helpers.command import SMALL as RECIPE
from helpers.command import fedquilt, lines, small
from helpers.guessing import fitting
from helpers.toy import fedavg, last, points

SMALL: dict[str, Any] = {"data": {"clients": 3, "limit": 150}, "model": {"kind": "mlp", "hidden": [12]}}


@pytest.mark.parametrize("kind", sorted(METHODS.keys() - {"fedbn"}))
def test_every_method_takes_a_codec_both_ways(kind: str) -> None:
    config = parse({**fitting(SMALL, kind), "method": {"kind": kind}, "codec": "half", "download_codec": "half"})
    federation = federation_of(config)
    method = method_of(config, federation)
    source = federation.pooled() if getattr(method, "pools_data", False) else federation
    check_codecs(method, source, Seed(0))
    log = Rounds(method, source, Local(), Seed(0)).play()
    assert log.quarantined == []
    assert log.bytes_down < log.raw_down or kind in ("local_only", "mae_alone")  # which send nothing


@pytest.mark.parametrize("kind", sorted(CODECS.keys() - {"lfsr"}))
def test_every_codec_can_be_had_from_a_recipe(kind: str) -> None:
    config = parse({**SMALL, "codec": {"kind": kind, "field": "delta"}})
    federation = federation_of(config)
    log = Rounds(method_of(config, federation), federation, Local(), Seed(0)).play()
    assert log.quarantined == []
    assert log.bytes_up < log.raw_up


def test_settings_become_codecs() -> None:
    asked = {
        "kind": "top_k",
        "share": 0.1,
        "field": "delta",
        "chain": ["half", {"kind": "lfsr"}],
        "error_feedback": True,
    }
    config = parse({"codec": asked, "download_codec": {"kind": "hgc", "bit_width": 32}})
    made = codec_of(config.codec, "codec")
    assert isinstance(made, on)
    assert made.field == "delta"
    assert isinstance(made.codec, error_feedback)
    assert codec_of(config.download_codec, "download_codec") == hgc(bit_width=32)
    two = parse({"codec": [{"kind": "half", "field": "delta"}, {"kind": "sign", "field": "gradient"}]})
    assert codec_of(two.codec, "codec") == together(on("delta", half()), on("gradient", sign()))
    with pytest.raises(ConfigError, match="each needs the field"):
        codec_of(parse({"codec": ["half", "sign"]}).codec, "codec")


def test_a_run_without_codecs_is_the_run_it_was() -> None:
    assert parse({"codec": []}).identity() == Config().identity()
    assert parse({"codec": "half"}).identity() != Config().identity()


def test_what_is_written_down_is_read_again() -> None:
    import tomllib

    config = parse({"codec": {"kind": "top_k", "share": 0.1, "chain": ["half"]}, "download_codec": "half"})
    assert parse(tomllib.loads(dump(config))) == config


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"kind": "topk"}, "codec.kind: unknown codec 'topk'; did you mean 'top_k'?"),
        ({"kind": "top_k", "share": 0}, r"codec: share must be in \(0, 1\]"),
        ({"kind": "top_k", "shares": 1}, "codec.shares: unknown key for 'top_k'; did you mean 'share'?"),
        ({"kind": "top_k", "chain": ["haf"]}, "codec.chain.0.kind: unknown codec 'haf'; did you mean 'half'?"),
        ([{"kind": "half"}, {"kind": "sig"}], "codec.1.kind: unknown codec 'sig'; did you mean 'sign'?"),
    ],
)
def test_wrong_settings_are_told(asked: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse({"codec": asked})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (['codec={kind="hgc", field="gradient"}'], "the uploads of 'train'. There is no field 'gradient' in Upload"),
        (["codec=lfsr"], "lfsr whitens bytes, but there are none"),
        (['codec={kind="hgc", chain=["half"]}'], "half codes matrices, but there is no float32 tensor"),
        (['download_codec={kind="half", field="delta"}'], "the downloads of 'train'. There is no field 'delta'"),
        (['download_codec={kind="sign", error_feedback=true}'], "a server keeps no memory for each client"),
        (['codec={kind="half", exchange="tune"}'], "There is no exchange 'tune'; there is train"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(settings: list[str], reason: str, tmp_path: Path) -> None:
    said = fedquilt("run", small(tmp_path), *settings)
    assert said.code == 2
    assert reason in said.err
    assert not (tmp_path / "runs").exists()


def test_traffic_of_a_run(tmp_path: Path) -> None:
    """Every row adds up to the frames that were really sent, and the picture's numbers to the sums."""
    recipe = small(
        tmp_path, RECIPE.replace("[engine]", '[codec]\nkind = "sign"\n[download_codec]\nkind = "half"\n[engine]')
    )
    result = fedquilt("run", recipe, "--json").json
    folder = Path(result["folder"])
    rows = lines(folder / "metrics" / "traffic.jsonl")
    for kind, way in (("raw", "up"), ("wire", "up"), ("raw", "down"), ("wire", "down")):
        total = sum(r[kind] * len(r["clients"]) for r in rows if r["direction"] == way)
        assert total == result[f"{'bytes' if kind == 'wire' else 'raw'}_{way}"]
    for row in rows:
        assert [sum(p[i] for p in row["parts"].values()) for i in (0, 1)] == [row["raw"], row["wire"]]
        assert (sorted(row["clients"]), row["exchange"]) == ([0, 1, 2, 3], "train")
    assert rows[1]["parts"]["delta"] == [4 * 650, 4 + -(-650 // 8)]  # one layer is one matrix, 10 x 65
    updates = lines(folder / "metrics" / "client_updates.jsonl")
    assert sum(v["raw_up"] for v in updates) == result["raw_up"]
    assert sum(v["bytes_down"] for v in updates) == result["bytes_down"]
    said = fedquilt("traffic", folder, "--plot", tmp_path / "curve.png", "--json").json
    assert said["wire_up"] == result["bytes_up"]
    assert sum(p["wire"] for p in said["parts"] if p["direction"] == "down") == result["bytes_down"]
    assert sum(c["wire_up"] for c in said["clients"].values()) == result["bytes_up"]
    assert said["fedavg"] == {"up": 12 * result["model_bytes"], "down": 12 * result["model_bytes"]}
    assert abs(12 * result["model_bytes"] - result["raw_down"]) < 12 * 16  # but for the record around it
    with (tmp_path / "curve.csv").open() as file:
        final = list(csv.DictReader(file))[-1]
    assert float(final["megabytes"]) == pytest.approx((result["bytes_up"] + result["bytes_down"]) / 1e6)
    assert float(final["megabytes_without_codecs"]) == pytest.approx((result["raw_up"] + result["raw_down"]) / 1e6)
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert "Plain FedAvg, head included" in fedquilt("traffic", folder).out
    assert result["memory"]["live_tensors"]["cpu"]["bytes"] > 0
    assert fedquilt("traffic", tmp_path).code == 2


# In Python


def test_a_methods_own_codec_is_accounted_for_too(tmp_path: Path) -> None:
    """HGLS codes gradients itself, up and down again: the account has them at their true ratio, about one bit for 32;
    and how the search went is in the log of rounds."""
    recipe = small(tmp_path, RECIPE)
    asked = ("model.kind=mlp", "method.kind=hgls", "method.gradient_codec=hgc", "rounds=1", "--json")
    folder = Path(fedquilt("run", recipe, *asked).json["folder"])
    found = fedquilt("traffic", folder, "--json").json
    gradients = {
        (p["exchange"], p["direction"]): p["raw"] / p["wire"] for p in found["parts"] if "gradient" in p["part"]
    }
    assert gradients.keys() == {("train", "up"), ("search", "down")}
    assert all(15 < ratio < 40 for ratio in gradients.values())
    assert found["raw_up"] > found["wire_up"]
    (row,) = lines(folder / "metrics/rounds.jsonl")
    assert row["search_candidates"] == 16  # four gradients for each of four clients
    assert row["search_candidates"] >= row["search_aligned"] >= row["search_taken"]


def test_what_the_client_sees_is_the_download_after_its_codec() -> None:
    """The same as a method that sends the coded weights itself; and so is what is scored."""
    found = last(Compressed(base=fedavg(), download=top_k(0.5)), points(10, 20), rounds=1)
    (train,) = Compressed(base=fedavg(), download=top_k(0.5)).exchanges()
    state = fedavg().init_server(Seed(0).fold("server"))
    seen = train.downloaded(state, 0, 0, Seed(0))
    assert sum(int((t == 0).sum()) for t in seen.shared.values()) >= 3
    weights = found.personal_model(0)
    assert sum(int((t == 0).sum()) for t in weights.values()) >= 3
    assert all((t != 0).all() for t in found.state.shared.values())


def test_a_reply_that_diverged_is_left_out_with_the_reason() -> None:
    from fedquilt.errors import RoundError
    from fedquilt.pieces.optimizers import SGD

    method = Compressed(base=fedavg(optimizer=SGD(3e38), epochs=4), codec=hgc())
    with pytest.raises(RoundError, match="finite"):
        last(method, points(20, 20), rounds=3)


def test_error_feedback_survives_a_stop(tmp_path: Path) -> None:
    method = Compressed(base=fedavg(), codec=error_feedback(chain(top_k(0.4), half())))
    whole = last(method, points(10, 20), rounds=4)
    for _ in run(method, points(10, 20), rounds=4, engine=Local(), folder=tmp_path, score=None):
        break
    again = last(method, points(10, 20), rounds=4, folder=tmp_path)
    assert again.digest() == whole.digest()


def test_compressed_refuses_what_is_no_codec() -> None:
    with pytest.raises(InputError, match="download must be a codec such as half"):
        Compressed(base=fedavg(), download="half")  # type: ignore[arg-type]
