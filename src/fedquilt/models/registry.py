"""Networks by name, made to measure for an input shape."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedquilt.core.memory import check_bytes
from fedquilt.core.net import Net
from fedquilt.core.params import everything_but, nothing, under
from fedquilt.errors import FedquiltError, InputError, did_you_mean
from fedquilt.models.counts import ModelSize, count
from fedquilt.models.encoder import TextEncoder
from fedquilt.models.masked.autoencoders import ADAPTING, SIZES, library_autoencoder, own_autoencoder, with_adapters
from fedquilt.models.masked.mae import MaskedAutoencoder
from fedquilt.models.resnet import ResNet
from fedquilt.models.signals import SignalCNN
from fedquilt.models.small import MLP, CNNCifar, CNNMnist, FedAvgCNN, LeNet5, LogisticRegression
from fedquilt.models.text import CharRNN, TextCNN
from fedquilt.models.vit import ViT, ViTCehgls
from fedquilt.models.weights.files import fingerprint
from fedquilt.models.weights.start import with_weights
from fedquilt.moved import moved
from fedquilt.own_code import own_errors, place, short
from fedquilt.registry import entries, lookup

Shape = tuple[int, ...]
COMMON = ("weights",)  # options that every model has
PATHS = ("weights", "pretrained", "folder")  # options that name files


@dataclass(frozen=True)
class ModelEntry:
    """A network that can be asked for; its name and one line about it are in :mod:`fedquilt.registry`.

    Args:
        build: Makes it.
        takes: The shapes it takes, in words.
        fits: Whether it takes a shape.
        arguments: How a shape becomes arguments.
        options: The other arguments that may be given.
        reference: The shape of one input for which its size is told.
        classes: And the number of classes.
        needs: Options that must be given; such a model has no size of its own.
        composed: Makes the builder of the arguments and options, where ``build`` alone does not; without classes.
        described: What else describes options, by its arguments and docstring.
        asks: Whether it takes ``classes``; a network of the user's own may have it of its own.
    """

    build: Callable[..., nn.Module]
    takes: str
    fits: Callable[[Shape], bool]
    arguments: Callable[[Shape], dict[str, Any]]
    options: tuple[str, ...] = ()
    reference: Shape = (1, 28, 28)
    classes: int = 10
    needs: tuple[str, ...] = ()
    composed: Callable[..., partial[nn.Module]] | None = None
    described: tuple[Callable[..., Any], ...] = ()
    asks: tuple[str, ...] = ("classes",)

    @property
    def known(self) -> tuple[str, ...]:
        """Every option, those that all models have included."""
        return (*self.options, *COMMON)

    @property
    def ids(self) -> bool:
        """Whether it takes token ids."""
        return bool(getattr(_class_of(self.build), "ids", False))


def _class_of(build: Any) -> Any:
    return build.func if isinstance(build, partial) else build


def _any_shape(shape: Shape) -> bool:
    return True


def _sides(*sides: int) -> Callable[[Shape], bool]:
    return lambda shape: len(shape) == 3 and shape[1] == shape[2] and shape[1] in sides


def _images(least: int) -> Callable[[Shape], bool]:
    return lambda shape: len(shape) == 3 and shape[1] == shape[2] and shape[1] >= least


def _window(shape: Shape) -> bool:
    return len(shape) == 2


def _text(shape: Shape) -> bool:
    return len(shape) == 1


def _whole(shape: Shape) -> dict[str, Any]:
    return {"shape": shape}


def _flat(shape: Shape) -> dict[str, int]:
    return {"features": math.prod(shape)}


def _image(shape: Shape) -> dict[str, int]:
    return {"channels": shape[0], "size": shape[1]}


def _signal(shape: Shape) -> dict[str, int]:
    return {"channels": shape[0], "length": shape[1]}


def _length(shape: Shape) -> dict[str, int]:
    return {"length": shape[0]}


_RESNET = ("norm", "stem", "width")
_VIT = ("patch", "width", "depth", "heads", "mlp", "dropout", "class_token", "zero_head", "frozen")
_CHARS = ("vocab", "width", "hidden", "layers")
_VIT_S = partial(ViT, patch=16, width=384, depth=12, heads=6, mlp=1536)


def _resnet(depth: int) -> ModelEntry:
    return ModelEntry(
        partial(ResNet, depth=depth), "(C, H, H) with H of 8 or more", _images(8), _image, _RESNET, (3, 32, 32)
    )


MODELS = {
    "logistic": ModelEntry(LogisticRegression, "any shape", _any_shape, _flat),
    "mlp": ModelEntry(MLP, "any shape", _any_shape, _flat, ("hidden",)),
    "lenet5": ModelEntry(LeNet5, "(C, 28, 28) or (C, 32, 32)", _sides(28, 32), _image),
    "fedavg_cnn": ModelEntry(FedAvgCNN, "(C, H, H) with H of 16 or more", _images(16), _image, ("hidden",)),
    "cnn_mnist": ModelEntry(CNNMnist, "(C, H, H) with H of 16 or more", _images(16), _image, ("hidden", "dropout")),
    "cnn_cifar": ModelEntry(CNNCifar, "(C, H, H) with H of 8 or more", _images(8), _image, ("hidden",), (3, 32, 32)),
    "resnet10": _resnet(10),
    "resnet18": _resnet(18),
    "resnet34": _resnet(34),
    "vit_tiny": ModelEntry(ViT, "(C, H, H) with H a multiple of patch", _images(4), _image, _VIT, (3, 32, 32)),
    "vit_small_patch16_224": ModelEntry(
        _VIT_S, "(C, 224, 224)", _sides(224), _image, ("dropout", "frozen"), (3, 224, 224), 1000
    ),
    "vit_cehgls": ModelEntry(
        ViTCehgls, "(C, H, H) with H of 28, 32, 64 or 224", _sides(28, 32, 64, 224), _image, ("dropout",), (3, 32, 32)
    ),
    "text_cnn": ModelEntry(
        TextCNN,
        "token ids (L,) with L of 5 or more",
        _text,
        _length,
        ("vocab", "width", "maps", "spans", "dropout"),
        (128,),
        4,
    ),
    "char_lstm": ModelEntry(CharRNN, "token ids (L,)", _text, _length, _CHARS, (80,), 80),
    "char_gru": ModelEntry(partial(CharRNN, cell="gru"), "token ids (L,)", _text, _length, _CHARS, (80,), 80),
    "signal_cnn": ModelEntry(
        SignalCNN, "(C, L) with L of 28 or more", _window, _signal, ("span", "hidden"), (9, 128), 6
    ),
    "text_encoder": ModelEntry(
        TextEncoder, "token ids (L,)", _text, _length, ("folder", "frozen", "pad"), (64,), 2, ("folder",)
    ),
    "mae": ModelEntry(
        MaskedAutoencoder,
        "(C, H, H) with H a multiple of patch",
        _images(4),
        _image,
        (*SIZES, "mask_ratio", "pretrained", *ADAPTING),
        (3, 32, 32),
        composed=own_autoencoder,
        described=(own_autoencoder, with_adapters),
    ),
    "hf_mae": ModelEntry(
        nn.Module,
        "(C, H, H) as its folder says",
        _images(4),
        _image,
        ("folder", "mask_ratio", "norm_pixels", *ADAPTING),
        (3, 224, 224),
        needs=("folder",),
        composed=library_autoencoder,
        described=(library_autoencoder, with_adapters),
    ),
}


def make(
    name: str, shape: Sequence[int], classes: int, *, weights: str | Path | None = None, **options: Any
) -> partial[nn.Module]:
    """A builder without arguments for inputs of this shape, (C, H, W), (C, L) or (F,): what ``Net`` takes.

    Args:
        name: Of the model.
        shape: Of one input.
        classes: How many there are.
        weights: A safetensors file or a folder to start from; see :func:`fedquilt.models.weights.start.with_weights`.
        options: Those of the model.

    Example:
        >>> build = make("fedavg_cnn", (1, 28, 28), 10)
        >>> type(build()).__name__
        'FedAvgCNN'
    """
    entry = find(name)
    if weights is not None:
        options["weights"] = weights
    _check_options(name, entry, options)
    given = _pinned(options)
    sizes = entry_arguments(name, entry, shape)
    if entry.composed is not None:
        builder = entry.composed(**sizes, **given)
    else:
        builder = partial(entry.build, **sizes, **({"classes": classes} if "classes" in entry.asks else {}), **given)
    if weights is not None:
        builder = with_weights(builder, weights)
    with own_errors(f"The model {short(name)}, made with {_told(options)},"):
        _try(name, builder, options)  # a wrong value speaks up here, not in the middle of a run
    return builder


def _try(name: str, builder: Callable[[], nn.Module], options: Mapping[str, Any]) -> None:
    try:
        made: object = bare(builder)
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, FedquiltError) or place(error):
            raise
        told = next(iter(str(error).splitlines()), "")[:300]
        raise InputError(f"The model {name} cannot be made with {_told(options)}: {told} Use other values.") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"{name} gave a {type(made).__name__}, which is not a torch.nn.Module.")


def _check_options(name: str, entry: ModelEntry, options: Mapping[str, object]) -> None:
    for option in options:
        if option not in entry.known:
            raise InputError(
                f"The model {name} has no option {option!r}{did_you_mean(option, entry.known)} "
                f"(its options: {', '.join(entry.known)})"
            )
    for option in entry.needs:
        if option not in options:
            raise InputError(f"The model {name} needs the option {option}.")
    for option in PATHS:
        place = options.get(option)
        if place is not None and (not isinstance(place, str | Path) or not str(place)):
            raise InputError(f"{option} should be the path of a file or a folder, got {place!r}.")


def _told(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} = {v!r:.60}" for k, v in options.items()) or "its own options"


def net(name: str, shape: Sequence[int], classes: int, **options: Any) -> Net:
    """The model as a ``Net``; what it holds frozen, such as a pretrained encoder, is neither trained nor sent."""
    builder = make(name, shape, classes, **options)
    module = bare(builder)
    size = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    check_bytes(size, f"The model {name} with these options")
    if hasattr(module, "adapters"):
        return Net(builder, frozen=everything_but("adapters"))
    still: tuple[str, ...] = getattr(module, "frozen", ())
    return Net(builder, frozen=under(*still) if still else nothing)


def find(name: str) -> ModelEntry:
    """What is known of a model; an unknown name is an error that says what was perhaps meant.

    A package may bring such an entry, or what makes a network from ``shape``, ``classes`` and options.
    """
    return _entry(lookup("model", name).load())


@cache
def _entry(found: Any) -> ModelEntry:
    if isinstance(found, ModelEntry):
        return found
    if not callable(found):
        raise InputError(f"A model is made by a class or a function, got a {type(found).__name__}: {found!r:.60}.")
    bare_module = getattr(found, "__init__", None) is nn.Module.__init__  # takes anything, and refuses it
    parameters = {} if bare_module else inspect.signature(found).parameters
    taken = {n: p for n, p in parameters.items() if p.kind not in _MANY}
    options = tuple(n for n in taken if n not in (*_OF_SHAPE, "classes"))
    needs = tuple(n for n in options if taken[n].default is inspect.Parameter.empty)
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = {*taken, "shape", "classes"} if anything else set(taken)
    asked = tuple(n for n in (*_OF_SHAPE, "classes") if n in given)
    return ModelEntry(found, "what it says", _any_shape, partial(_asked, asked), options, needs=needs, asks=asked)


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_OF_SHAPE: dict[str, Callable[[Shape], Any]] = {  # what a network may ask for, by the names of its arguments
    "shape": tuple,
    "features": math.prod,
    "channels": lambda shape: shape[0],
    "size": lambda shape: shape[-1],
    "length": lambda shape: shape[-1],
}


def _asked(names: Sequence[str], shape: Shape) -> dict[str, Any]:
    return {n: _OF_SHAPE[n](shape) for n in names if n in _OF_SHAPE}


def entry_arguments(name: str, entry: ModelEntry, shape: Sequence[int]) -> dict[str, Any]:
    """The arguments that follow from the shape; refused when the network cannot take it."""
    wanted = tuple(int(s) for s in shape)
    if not wanted or min(wanted) < 1:
        raise InputError(f"The shape of one input must be like (1, 28, 28) or (20,), got {tuple(shape)}.")
    if not entry.fits(wanted):
        fitting = [other for other, e in MODELS.items() if e.fits(wanted) and e.ids <= (entry.ids or wanted[1:] == ())]
        raise InputError(f"The model {name} takes {entry.takes}, not {wanted}. These fit: {', '.join(fitting)}.")
    return entry.arguments(wanted)


def available() -> list[dict[str, Any]]:
    """Every name with what it takes, its size and the cost of one row for its reference input, and a description.

    A model that must be given something first, such as a folder, has no size here.
    """
    rows = []
    for name, known in entries("model").items():
        entry = find(name)
        counts = None if entry.needs else _counts(name)
        rows.append(
            {
                "name": name,
                "takes": entry.takes,
                "input": list(entry.reference),
                "classes": entry.classes,
                "parameters": None if counts is None else counts.parameters,
                "mflops": None if counts is None else round(counts.flops / 1e6, 2),
                "description": known.about,
            }
        )
    return rows


@cache
def _counts(name: str) -> ModelSize:
    entry = find(name)
    return count(make(name, entry.reference, entry.classes), entry.reference)


def bare(builder: Callable[[], nn.Module]) -> nn.Module:
    """The module without memory for its tensors, and without drawing random numbers, where its code can do that."""
    try:
        with torch.device("meta"):
            return builder()
    except (NotImplementedError, RuntimeError):  # it looks at values
        with torch.random.fork_rng(devices=()):
            return builder()


def _pinned(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the builder: lists as tuples, and a local folder by its full path and content."""
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items() if n not in COMMON}
    folder = given.get("folder")
    if isinstance(folder, str) and Path(folder).is_dir():
        given |= {"folder": str(Path(folder).resolve()), "content": fingerprint(folder)}
    return given


def __getattr__(name: str) -> object:
    """Names of 0.1."""
    return moved(f"{__name__}:{name}")
