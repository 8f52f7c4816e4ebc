"""Losses, loops, metrics, data and callbacks of one's own: what is refused, and that every engine gives the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt.config.config import load
from fedquilt.errors import ConfigError
from fedquilt.metrics.table import metrics
from helpers.command import SMALL, fedquilt

CODE = """
import numpy as np
import torch
from torch.nn import functional as F

from fedquilt import Callback, Federation
from fedquilt.metrics.table import Metric


def smooth(scores, labels, by: float = 0.1):
    return F.cross_entropy(scores, labels, label_smoothing=by)


def term(out, params, fixed, batch):
    return F.cross_entropy(out, batch.y, label_smoothing=0.1)


def confidence(scores, labels, of: int = 1):
    return scores.softmax(1).topk(of, 1).values.sum(1).mean() if len(labels) > 1 else float("nan")


called_first = Metric(id="called_first", name="called first class", of=lambda counts: counts.called[:, 0] / counts.rows)


def train(model, data_loader, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=context.lr)
    for x, y in data_loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


class Told(Callback):
    def on_evaluate(self, snapshot):
        return {"told": 1.0}


def no_callback():
    return 3


def four():
    draw, y = np.random.default_rng(0), np.arange(60) % 2
    x = (draw.normal(size=(60, 3)) + y[:, None]).astype(np.float32)
    return x[:40], y[:40], x[40:], y[40:]


def three():
    return np.zeros(3), np.zeros(3), np.zeros(3)


def fails():
    return np.zeros(3)[7], np.zeros(3)


def made() -> Federation:
    return Federation.from_source("digits", clients=3)
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "my.py").write_text(CODE)
    file = tmp_path / "recipe.toml"
    file.write_text(SMALL.replace("rounds = 3", "rounds = 1") + f'\n[output]\nfolder = "{tmp_path}/runs"\n')
    return file


def digest(recipe: Path, *overrides: str) -> str:
    said = fedquilt("run", recipe, *overrides, "--json", "--fresh")
    assert said.code == 0, said.out
    return str(said.json["digest"])


def test_a_loss_is_a_function_of_scores_or_a_term_or_a_class(recipe: Path) -> None:
    plain = digest(recipe, "train.loss=my.py:smooth")
    assert plain == digest(recipe, "train.loss=my.py:term")
    assert plain == digest(recipe, "train.loss={kind='torch.nn:CrossEntropyLoss', label_smoothing=0.1}")
    assert plain == digest(recipe, "train.loss=my.py:smooth", "engine.kind=workers", "engine.processes=1")
    assert plain != digest(recipe, "train.loss={kind='my.py:smooth', by=0.3}")
    assert digest(recipe) == digest(recipe, "train.loss={kind='my.py:smooth', by=0.0}") == digest(recipe)


def test_side_by_side_a_loss_is_the_same_but_for_rounding(recipe: Path) -> None:
    def loss(*overrides: str) -> float:
        said = fedquilt("run", recipe, "train.loss=my.py:smooth", *overrides, "--json", "--fresh")
        assert said.code == 0, said.out
        return float(said.json["last"]["train_loss"])

    assert loss("engine.kind=lanes") == pytest.approx(loss(), rel=1e-4)


@pytest.mark.parametrize("method", ["fedlc", "fedavg_balanced"])
def test_methods_with_a_loss_of_their_own_refuse_another(recipe: Path, method: str) -> None:
    said = fedquilt("run", recipe, f"method.kind={method}", "train.loss=my.py:smooth")
    assert said.code == 2
    assert f"{method} has its own loss" in said.err


def test_a_loop_is_the_local_work(recipe: Path) -> None:
    assert digest(recipe, "train.loop=my.py:train") == digest(
        recipe, "train.loop=my.py:train", "engine.kind=workers", "engine.processes=1"
    )
    said = fedquilt("run", recipe, "method.kind=scaffold", "train.loop=my.py:train")
    assert said.code == 2
    assert "reads the mean gradient off steps" in said.err


def test_metrics_of_ones_own_are_scored_everywhere_and_forgotten_by_the_next_recipe(recipe: Path) -> None:
    asked = ["metrics=['my.py:called_first', {kind='my.py:confidence', of=2, name='two', share=true}]"]
    asked += ["stop.metric=confidence", "--json", "--fresh"]
    here = fedquilt("run", recipe, *asked)
    assert here.code == 0, here.out
    there = fedquilt("run", recipe, *asked, "engine.kind=workers", "engine.processes=1")
    assert here.json["last"]["test_confidence"] == there.json["last"]["test_confidence"]
    assert 0.2 < here.json["last"]["test_confidence"] <= 1
    assert 0 <= here.json["last"]["test_called_first"] <= 1
    for one in ("my.py:confidence", "{kind='my.py:confidence', of=2}"):
        assert [choice.kind.rpartition(":")[2] for choice in load(recipe, [f"metrics={one}"]).metrics] == ["confidence"]
        assert "confidence" in {m.id for m in metrics()}
    load(recipe)
    assert {m.id for m in metrics()}.isdisjoint({"confidence", "called_first"})


def test_callbacks_hear_of_the_run(recipe: Path) -> None:
    said = fedquilt("run", recipe, "callbacks=['my.py:Told']", "--json")
    assert said.json["last"]["told"] == 1.0
    said = fedquilt("run", recipe, "callbacks=['my.py:no_callback']")
    assert said.code == 2
    assert "no_callback gave a int. Make it a subclass of fedquilt.Callback" in said.err


@pytest.mark.parametrize("data", ["{source='my.py:four', clients=2}", "{source='my.py:made', by_user=true}"])
def test_data_of_ones_own(recipe: Path, data: str) -> None:
    assert fedquilt("run", recipe, f"data={data}", "model=logistic").code == 0


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("three", "gave a tuple, but data.source needs the arrays x and y, or"),
        ("fails", "IndexError: index 7 is out of bounds for axis 0 with size 3 (my.py, line"),
        ("nothing", "'my.py' has no 'nothing'"),
    ],
)
def test_data_that_are_none_are_refused(recipe: Path, data: str, told: str) -> None:
    said = fedquilt("run", recipe, f"data.source=my.py:{data}")
    assert said.code == 2
    assert told in said.err


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.loss={kind='my.py:smooth', bi=1}", "train.loss.bi: unknown key for 'my.py:smooth'; did you mean 'by'?"),
        ("train.loss=smooth", "train.loss.kind: unknown loss 'smooth'; name one of your own, such as 'my.py:smooth'"),
        ("model.kind=my.Net", "model.kind: unknown model 'my.Net'; one of your own is written 'my.py:Net'"),
        ("train.loss=my.pack.smooth", "unknown loss 'my.pack.smooth'; one of your own is written 'my.pack:smooth'"),
        ("train.loop=my.py:three", "train.loop: A client update is a function (model, data_loader, context)"),
        ("metrics=['my.py:cnfidence']", "metrics.0: 'my.py' has no 'cnfidence'; did you mean 'confidence'?"),
        ("metrics=[{kind='my.py:confidence', off=1}]", "metrics.0.off: unknown key for 'my.py:confidence'"),
        ("metrics=['my.py:confidence', 'my.py:confidence']", "There is a metric 'confidence' already"),
        ("metrics=my.py:cnfidence", "metrics.0: 'my.py' has no 'cnfidence'; did you mean 'confidence'?"),
        ("metrics=[3]", "metrics.0: should be a name such as 'my.py:auroc'"),
        ("callbacks=[{kind='my.py:Told', x=1}]", "callbacks.0.x: unknown key for 'my.py:Told'"),
    ],
)
def test_what_is_wrong_is_told_where_it_is(recipe: Path, override: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(recipe, [override])
    assert told in "\n".join(error.value.problems)
