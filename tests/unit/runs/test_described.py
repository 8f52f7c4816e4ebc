"""What the commands tell of methods, codecs, partitions and models: nothing without its meaning."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from fedquilt.config.described import detail, meaning_of, paper
from fedquilt.registry import entries, lookup
from helpers.command import fedquilt

CHOICES = [
    (kind, name)
    for kind in ("method", "codec", "partition", "model")
    for name in entries(kind)
    if kind != "method" or inspect.isclass(lookup(kind, name).load())
]


@pytest.mark.parametrize(("kind", "name"), CHOICES)
def test_every_option_has_a_meaning(kind: str, name: str) -> None:
    found = detail(kind, name)
    for row in (*found["options"], *found.get("train", ())):
        assert row["type"]
        assert len(row["meaning"]) > 10
        assert not row["meaning"].startswith(("See ", "As for", "As of"))


@pytest.mark.parametrize("name", [name for kind, name in CHOICES if kind == "method"])
def test_a_method_is_a_class_with_its_paper_or_a_reason_why_there_is_none(name: str) -> None:
    maker = lookup("method", name).load()
    own = inspect.cleandoc(vars(maker)["__doc__"])
    assert "Reference: " in own, "a docstring ends in its reference, or in 'Reference: none; ' and why"
    assert len(paper(maker)) > 10


class Above:
    """A base.

    Args:
        wide, high: Sizes.
        old: What it
            always meant.

    Reference: Somebody, 1999.
    """


class Below(Above):
    """On it.

    Args:
        high: See :class:`a.b.Above`.
        old: No more than ``high`` of :class:`a.b.Above`.
    """


def test_meanings_are_read_from_docstrings_the_nearest_first_that_says_it() -> None:
    assert meaning_of([Above])["old"] == "What it always meant"
    assert meaning_of([Below]) == {"wide": "Sizes", "high": "Sizes", "old": "No more than high of Above"}
    assert meaning_of([len, Below])["wide"] == "Sizes"
    assert paper(Below) == "Somebody, 1999"


@pytest.mark.parametrize(
    ("words", "setting", "row"),
    [
        (("codecs", "top_k"), "codec.share", {"type": "number", "required": False, "default": 0.01}),
        (("partitions", "dirichlet"), "data.partition.alpha", {"type": "number", "required": True, "default": None}),
        (("methods", "fedprox"), "method.mu", {"type": "number", "required": False, "default": 0.01}),
        (("models", "resnet18"), "model.norm", {"type": "text", "required": False, "default": "group"}),
        (("models", "mlp"), "model.hidden", {"type": "list of whole number", "required": False, "default": [200]}),
    ],
)
def test_the_commands_tell_the_same(words: tuple[str, str], setting: str, row: dict[str, Any]) -> None:
    found = next(r for r in fedquilt(*words, "--json").json["options"] if r["setting"] == setting)
    assert {key: found[key] for key in row} == row
    said = fedquilt(*words)
    assert said.code == 0
    assert setting in said.out


def test_the_list_of_partitions_and_the_paper_of_a_method() -> None:
    assert [row["name"] for row in fedquilt("partitions", "--json").json] == list(entries("partition"))
    assert "Li et al., Federated Optimization" in fedquilt("methods", "fedprox").out


NOBODYS = {  # choices that no paper is cited for
    "codec": {"uniform", "half", "sparse", "lfsr"},
    "partition": {"iid", "dirichlet_per_client", "class_groups", "log_normal", "power_law", "truncated_per_client"},
    "model": {"logistic", "mlp", "cnn_mnist", "cnn_cifar", "signal_cnn"},
}


@pytest.mark.parametrize("kind", ["method", "codec", "partition", "model"])
def test_every_choice_tells_its_paper(kind: str) -> None:
    assert {name for name in entries(kind) if not detail(kind, name)["reference"]} == NOBODYS.get(kind, set())
