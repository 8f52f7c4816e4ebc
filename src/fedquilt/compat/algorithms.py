"""PFLlib's names of algorithms and models, as methods and models here."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedquilt.compat.arguments import OWN
from fedquilt.errors import InputError, did_you_mean

Options = dict[str, Any]


@dataclass(frozen=True)
class Algorithm:
    """A method here, and where its options come from.

    Args:
        name: PFLlib's.
        kind: Ours.
        takes: Our option by PFLlib's long argument.
        defaults: PFLlib's defaults of those arguments; None must be given.
        fixed: Further options of ours.
        searches: Whether -uhg can be used on top of it.
    """

    name: str
    kind: str
    takes: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Callable[[argparse.Namespace], Options] = lambda asked: {}
    searches: bool = False


def _rate(asked: argparse.Namespace) -> Options:
    return {"alpha": asked.local_learning_rate}


ALGORITHMS = (
    Algorithm("FedAvg", "fedavg", searches=True),
    Algorithm("FedProx", "fedprox", {"mu": "mu"}, {"mu": 0.0}, searches=True),
    Algorithm(
        "SCAFFOLD", "scaffold", {"server_learning_rate": "server_lr"}, {"server_learning_rate": 1.0}, searches=True
    ),
    Algorithm("MOON", "moon", {"mu": "mu", "tau": "tau"}, {"mu": 0.0, "tau": 1.0}),
    Algorithm("FedDyn", "feddyn", {"alpha": "alpha"}, {"alpha": 1.0}),
    Algorithm("Local", "local_only"),
    Algorithm("FedPer", "fedper", searches=True),
    Algorithm("FedRep", "fedrep", {"plocal_epochs": "head_epochs"}, {"plocal_epochs": 1}, searches=True),
    Algorithm("FedBABU", "fedbabu", {"fine_tuning_epochs": "tune_epochs"}, {"fine_tuning_epochs": 10}),
    Algorithm("FedBN", "fedbn"),
    Algorithm("FedROD", "fedrod"),
    Algorithm("FedProto", "fedproto", {"lamda": "lam"}, {"lamda": 1.0}),
    Algorithm("Ditto", "ditto", {"mu": "lam", "plocal_epochs": "own_epochs"}, {"mu": 0.0, "plocal_epochs": 1}),
    Algorithm("APFL", "apfl", {"alpha": "alpha"}, {"alpha": 1.0}),
    Algorithm(
        "pFedMe",
        "pfedme",
        {"beta": "beta", "lamda": "lam", "K": "inner_steps", "p_learning_rate": "inner_lr"},
        {"beta": None, "lamda": 1.0, "K": 5, "p_learning_rate": 0.01},
    ),
    Algorithm("PerAvg", "perfedavg", fixed=_rate),
    Algorithm(
        "FedALA",
        "fedala",
        {"eta": "rate", "rand_percent": "share", "layer_idx": "top"},
        {"eta": 1.0, "rand_percent": 80, "layer_idx": 2},
    ),
    Algorithm(
        "FedAMP",
        "fedamp",
        {"alphaK": "alpha", "sigma": "sigma", "lamda": "lam"},
        {"alphaK": 1.0, "sigma": 1.0, "lamda": 1.0},
    ),
)
ALIASES = {"perfedavg": "peravg", "fedrod": "fedrod", "fedlocal": "local"}


def algorithm_of(name: str) -> Algorithm:
    """The algorithm of this name, in any case."""
    known = {a.name.lower(): a for a in ALGORITHMS}
    wanted = ALIASES.get(name.lower(), name.lower())
    if wanted not in known:
        names = [a.name for a in ALGORITHMS]
        raise InputError(f"-algo {name}: not here{did_you_mean(name, names)} (there are {', '.join(names)})")
    return known[wanted]


def method_settings(asked: argparse.Namespace) -> Options:
    """The section [method] of a recipe."""
    algorithm = algorithm_of(asked.algorithm)
    for (short, long), _, of in OWN:
        name = long.removeprefix("--")
        if getattr(asked, name) is not None and name not in algorithm.takes:
            raise InputError(f"{short} is of {of.split(':')[0]}; {algorithm.name} makes no use of it. Leave it out.")
    options = algorithm.fixed(asked)
    for theirs, ours in algorithm.takes.items():
        given = getattr(asked, theirs)
        value = algorithm.defaults[theirs] if given is None else given
        if value is None:
            raise InputError(f"{algorithm.name} needs --{theirs}: PFLlib's default, 0, would keep the global model.")
        options[ours] = value / 100 if theirs == "rand_percent" else value
    if not asked.use_head_grad:
        return {"kind": algorithm.kind, **options}
    return _searching(asked, algorithm, options)


def _searching(asked: argparse.Namespace, algorithm: Algorithm, options: Options) -> Options:
    if not algorithm.searches:
        bases = ", ".join(a.name for a in ALGORITHMS if a.searches)
        raise InputError(f"-uhg searches on top of {bases}, not of {algorithm.name}. Leave -uhg out.")
    if options.get("server_lr", 1.0) != 1.0:
        raise InputError("-uhg on SCAFFOLD has a server learning rate of 1. Leave -slr out.")
    options.pop("server_lr", None)
    found: Options = {"kind": "hgls", "base": algorithm.kind, **options}
    if asked.as_coded:
        found |= {"gradient": "last_batch", "search_base": "local"}
    if asked.search is not None:
        found["search"] = asked.search
    if asked.use_grad_compress:
        found |= {"gradient_codec": "hgc_legacy" if asked.as_coded else "hgc", "num_bins": asked.bit_width or 16}
    return found


def variant_of(asked: argparse.Namespace) -> str:
    """What results are called after: the algorithm, and what was put on top of it."""
    parts = [algorithm_of(asked.algorithm).name]
    coded = "coded" if asked.as_coded else "joint" if asked.search == "joint" else ""
    if asked.use_head_grad:
        parts.append(f"HGLS{coded}")
    if asked.use_grad_compress:
        parts.append(f"HGC{'coded' if asked.as_coded else ''}{asked.bit_width or 16}")
    return "-".join(parts)


MODELS = {
    "cnn": "fedavg_cnn",
    "resnet10": "resnet10",
    "vit": "vit_cehgls",
    "mlr": "logistic",
    "dnn": "mlp",
    "resnet": "resnet18",
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "textcnn": "text_cnn",
}


VOCABULARY = 80  # ids that PFLlib expects by default


def text_settings(asked: argparse.Namespace, shape: tuple[int, ...]) -> Options:
    """PFLlib's TextCNN: vectors of -fd numbers, 100 maps over 3, 4 and 5 tokens, dropout 0.8."""
    if len(shape) != 1:
        raise InputError(f"-m TextCNN takes rows of token ids; the rows of {asked.dataset} have the shape {shape}.")
    if asked.max_len is not None and asked.max_len != shape[0]:
        raise InputError(f"-ml {asked.max_len}: the texts of {asked.dataset} have {shape[0]} tokens. Leave -ml out.")
    return {"kind": "text_cnn", "vocab": asked.vocab_size or VOCABULARY, "width": asked.feature_dim, "dropout": 0.8}


def model_settings(asked: argparse.Namespace, shape: tuple[int, ...]) -> Options:
    """The section [model] of a recipe, for rows of this shape; pairings that cannot work are refused."""
    wanted = asked.model.lower()
    if wanted not in MODELS:
        raise InputError(
            f"-m {asked.model}: not here{did_you_mean(wanted, MODELS)} (CNN, ResNet10, ViT, MLR, DNN, "
            "ResNet18, ResNet34, TextCNN)"
        )
    if wanted == "textcnn":
        return text_settings(asked, shape)
    for short, given in (("-vs", asked.vocab_size), ("-ml", asked.max_len)):
        if given is not None:
            raise InputError(f"{short} {given}: only TextCNN takes texts, {asked.model} does not. Leave {short} out.")
    _check_shape(asked, wanted, shape)
    options: Options = {"kind": MODELS[wanted]}
    if wanted == "cnn":
        return {**options, "hidden": asked.feature_dim}
    if asked.feature_dim != 512:
        raise InputError(
            f"-fd {asked.feature_dim}: only CNN takes another width of features, {asked.model} has its own. "
            "Leave -fd out."
        )
    if wanted == "dnn":
        return {**options, "hidden": [100]}
    if wanted.startswith("resnet"):
        options |= {"norm": "batch", "stem": "7x7"}
    return options


def _check_shape(asked: argparse.Namespace, wanted: str, shape: tuple[int, ...]) -> None:
    image = len(shape) == 3 and shape[1] == shape[2]
    if wanted.startswith(("cnn", "resnet", "vit")) and not image:
        raise InputError(f"-m {asked.model} takes square images; the rows of {asked.dataset} have the shape {shape}.")
    if wanted.startswith("resnet") and shape[0] != 3:
        raise InputError(f"-m {asked.model} takes 3 channels; {asked.dataset} has {shape[0]}. Use -m CNN.")
