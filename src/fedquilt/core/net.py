"""Net: the only door to ``nn.Module``. Outside it, a model is a dict of named tensors."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedquilt.core.capture.purity import own
from fedquilt.core.capture.steps import Capture, CapturedSteps, UpdateSteps
from fedquilt.core.params import Names, Params, check_known, nothing, under
from fedquilt.core.resident import Resident, slots_of
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.core.task import Task
from fedquilt.core.tree import in_bfloat16
from fedquilt.errors import InputError, did_you_mean
from fedquilt.kernels import wide

_SMALL = 2**20  # numbers of a network whose first values are drawn from a captured step
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


class ScoresAndFeatures(NamedTuple):
    """What a network made of a batch: class scores, and the feature vectors its head made them from."""

    logits: Tensor
    features: Tensor


def _check_call(build: Callable[..., nn.Module], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise unless it can be called so."""
    try:
        takes = inspect.signature(build)
    except (TypeError, ValueError):  # of a class in C, say, nobody knows
        return
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        name, odd = getattr(build, "__name__", repr(build)), [n for n in kwargs if n not in takes.parameters]
        meant = did_you_mean(odd[0], takes.parameters) if odd else ""
        raise InputError(f"{name}: {error}{meant}. It takes {', '.join(takes.parameters) or 'nothing'}.") from error


@dataclass(frozen=True)
class Net:
    """A network as a pure function of its tensors.

    Args:
        build: Makes the module, with no arguments; a class or a function that other processes can import.
            (A ready-made module also works, on the ``local`` engine: its weights are then the start.)
        frozen: Names that are never trained, never sent and in nobody's state, beside the parameters that ``build``
            leaves with ``requires_grad=False``, which are frozen anyway. Their values come from ``build`` under
            ``seed``, equal in every process; a part that is wholly frozen, or whose buffers are, stays in evaluation
            mode. A part (a module with modules in it) of whose parameters ``build`` leaves none trainable is wholly
            frozen with its buffers, so its BatchNorm and dropout do what they do after training. All other buffers
            are among ``names``, as training may change them.
        channels_last: Memory layout of image batches. None: yes if there is a 2-d convolution (20-30 % faster on
            CPUs), but no with a strided 1 x 1 one of fewer than 16 input channels, which torch 2.13 gets wrong. It
            changes results in the last digits, so it is part of the model, not of the engine.
        inputs: The columns of a batch that the module is called with.
        seed: For the values of frozen tensors that ``build`` draws at random.
        fast_kernels: Let convolutions with 3 x 3 and 5 x 5 kernels save multiplications on CPUs where that is faster,
            and let a first one be one product with its pooling; see :mod:`fedquilt.kernels.winograd` and
            :mod:`fedquilt.kernels.pooling`. It changes results by about 1e-5 of their size, so it is part of the model,
            too. None: yes for the networks of ``fedquilt.models``, no for others, which compute what PyTorch does.
        precision: "bfloat16" computes matrix products and convolutions in 16 bits where the device has it; weights,
            sums and losses stay in 32. It changes results, so it is part of the model, too.
        capture: Whether steps of local training are recorded once and played again without Python and autograd, to the
            same bits. "auto": the library's own, and those of other networks and losses that are shown pure (see the
            page Models). True: without that, only compared with plain steps now and then. False: never.
        task: What its outputs are for, and by what they are judged: that of the data, ``task=federation.task``. None:
            scores of classes, for rows with one class label each.
        winograd: The former name of ``fast_kernels``; deprecated.

    Example:
        >>> net = Net.of(nn.Linear, in_features=4, out_features=2)
        >>> sorted(net.init(Seed(0)))
        ['bias', 'weight']
    """

    build: Callable[[], nn.Module] | nn.Module
    frozen: Names = nothing
    channels_last: bool | None = None
    inputs: tuple[str, ...] = ("x",)
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    fast_kernels: bool | None = None
    capture: Capture = "auto"
    task: Task | None = None
    _cell: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    winograd: InitVar[bool | None] = None

    def __post_init__(self, winograd: bool | None) -> None:
        if winograd is not None:
            warnings.warn("Net(winograd=...) is called fast_kernels now.", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "fast_kernels", winograd)
        if self.capture != "auto" and not isinstance(self.capture, bool):
            raise InputError(f"Net's capture is 'auto', True or False, got {self.capture!r}.")

    @staticmethod
    def of(build: Callable[..., nn.Module], /, *args: object, **kwargs: object) -> Net:
        """A net of ``build(*args, **kwargs)``; refused if it does not take these arguments."""
        _check_call(build, args, kwargs)
        return Net(partial(build, *args, **kwargs))

    def for_task(self, task: Task | None) -> Net:
        """The same network for a task: ``Net.of(...).for_task(federation.task)``."""
        return replace(self, task=task)

    # What the network is made of

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor that is not frozen: parameters and persistent buffers, in module order."""
        return self._resident().names

    @property
    def trainable(self) -> tuple[str, ...]:
        """The parameters among ``names``; the rest are buffers."""
        return self._resident().trainable

    @property
    def normalises(self) -> bool:
        """Whether it learns statistics of a batch (BatchNorm), which takes two rows at least."""
        return self._resident().normalises

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of its BatchNorm layers; a layer's tensors are under its name."""
        return self._resident().norms

    @property
    def fast_layers(self) -> dict[str, str]:
        """The layers that kernels of this library compute, and which ('winograd', 'pooling'); their sums
        may be made in another order than torch's."""
        own = {n: type(m).__module__ for n, m in self._resident().module.named_modules()}
        return {n: place.rpartition(".")[2] for n, place in own.items() if place.startswith("fedquilt.kernels.")}

    @property
    def has_linear_head(self) -> bool:
        """Whether its module has the parts ``features`` and ``head``, and ``head`` is one linear layer."""
        module = self._resident().module
        head = getattr(module, "head", None)
        return isinstance(getattr(module, "features", None), nn.Module) and (
            isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
        )

    @property
    def captured_steps(self) -> CapturedSteps:
        """Its captured steps; none where a pass also changes the module (BatchNorm, buffers of a module's own)."""
        if "captured" not in self._cell:
            resident = self._resident()
            captured_steps = CapturedSteps(resident, self.capture)
            captured_steps.wanted = captured_steps.wanted and not resident.normalises and not resident.transient
            self._cell["captured"] = captured_steps
        found: CapturedSteps = self._cell["captured"]
        return found

    @property
    def embeds(self) -> bool:
        """Whether its rows are token ids, which it looks up in an embedding."""
        module = self._resident().module
        tables = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
        return tables or bool(getattr(module, "ids", False))

    def trait(self, name: str) -> Any:
        """An attribute of the module, such as the width of its embeddings."""
        module = self._resident().module
        if not hasattr(module, name):
            raise InputError(f"{type(module).__name__} has no {name!r}, which is asked for here.")
        return getattr(module, name)

    def under(self, *prefixes: str) -> Names:
        """The names at or below these prefixes, each of which must be there."""
        check_known(under(*prefixes), self.names)
        return under(*prefixes)

    def init(self, seed: Seed) -> Params:
        """Fresh values for every name, drawn from the seed."""
        small = self._resident().size <= _SMALL and not isinstance(self.build, nn.Module)
        with seed.fold("init").ambient():
            values = self._births().step({}, self._born) if small else self._born()
        return dict(zip(self.names, values, strict=True))

    def _born(self) -> list[Tensor]:
        slots = slots_of(self._make())
        return [slots[n][0][0][slots[n][0][1]].detach().clone() for n in self.names]

    def _births(self) -> UpdateSteps:
        """Drawing fresh values is recorded, too: with many clients, building a module for each takes longer."""
        if "births" not in self._cell:
            captured_steps = CapturedSteps(capture=self.capture, build=(self.build, self._resident().module))
            self._cell["births"] = captured_steps.update(self.build, [])
        found: UpdateSteps = self._cell["births"]
        return (
            found if found.watch is None else found.captured_steps.update(self.build, [])
        )  # a user's code is looked at anew

    def full(self, params: Mapping[str, Tensor]) -> Params:
        """A complete state dict: these values plus the frozen ones, for saving a model."""
        resident = self._resident()
        whole = {**{n: t.detach() for n, t in params.items()}, **resident.frozen}
        return whole | {alias: whole[n].clone() for alias, n in resident.aliases.items() if n in whole}

    def taken(self, whole: Mapping[str, Tensor]) -> Params:
        """The values of ``names`` in a complete state dict, whose frozen values must be this network's own."""
        self._resident().check_held(whole)
        return {n: whole[n] for n in self.names if n in whole}

    def module(self, params: Mapping[str, Tensor]) -> nn.Module:
        """A module of its own with these values, in evaluation mode: what ``build`` makes, and nothing of this
        library's kernels in it."""
        made = self._fresh()
        made.load_state_dict(self.full({name: params[name] for name in self.names}))
        return made.eval()

    # Calling it

    def own(self, params: Mapping[str, Tensor], device: torch.device | None = None) -> Params:
        """Copies that training may change in place, on the device and in the layout the network runs with."""
        last = self._resident().channels_last
        copies = {}
        for name, tensor in params.items():
            layout = torch.channels_last if last and tensor.dim() == 4 else torch.contiguous_format
            copies[name] = tensor.detach().to(device=device, memory_format=layout, copy=True)
        return copies

    def __call__(self, params: Params, batch: Batch, train: bool = False) -> Any:
        """What the module returns for this batch with these values.

        In training mode, buffers among ``params`` (BatchNorm statistics) are updated in place, as modules do: give
        copies made with ``own``.
        """
        module, columns = self._ready(params, batch, train)
        with self._precise(params):
            return module(*columns)

    def ask(self, params: Params, what: str, *tensors: Tensor | None, train: bool = False) -> Any:
        """What a method of the module returns for these tensors, for example its ``embed``."""
        method, resident = self.trait(what), self._resident()
        resident.bind(params)
        resident.mode(train)
        with self._precise(params):
            return method(*tensors)

    def split(self, params: Params, batch: Batch, train: bool = False) -> ScoresAndFeatures:
        """As calling it, and also the features: for modules with the parts ``features`` and ``head``."""
        module, columns = self._ready(params, batch, train)
        parts = getattr(module, "features", None), getattr(module, "head", None)
        if not all(isinstance(part, nn.Module) for part in parts):
            raise InputError(
                f"{type(module).__name__} is not in two parts. This method needs a module that computes "
                "head(features(x)) and has both as submodules of these names."
            )
        with self._precise(params):
            found = module.features(*columns)
            return ScoresAndFeatures(module.head(found), found)

    def linear_inputs(self, params: Params, batch: Batch) -> Params:
        """What enters each linear layer, under the name of its weight, when this batch is scored."""
        module, columns = self._ready(params, batch, train=False)
        seen: Params = {}
        hooks = [
            layer.register_forward_hook(partial(_keep_input, seen, f"{name}.weight" if name else "weight"))
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear)
        ]
        try:
            module(*columns)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Inside, it is called by ``torch.func.vmap``: with the ordinary memory layout, and nothing stays bound."""
        resident = self._resident()
        last, resident.channels_last = resident.channels_last, False
        held = resident.held()
        try:
            with wide(resident.module):
                yield
        finally:
            resident.channels_last = last
            resident.hold(held)

    def _precise(self, params: Params) -> AbstractContextManager[None]:
        if self.precision == "float32":
            return _AS_IT_IS
        return in_bfloat16(next((t.device for t in params.values()), torch.device("cpu")))

    def _ready(self, params: Params, batch: Batch, train: bool) -> tuple[Any, list[Tensor]]:
        resident = self._resident()
        if resident.channels_last and not torch.is_grad_enabled():
            params = resident.laid_out(params)
        resident.bind(params)
        resident.mode(train)
        columns = [batch.columns[name] for name in self.inputs]
        if resident.channels_last:
            columns = [c.contiguous(memory_format=torch.channels_last) if c.dim() == 4 else c for c in columns]
        return resident.module, columns

    def _make(self) -> nn.Module:
        if isinstance(self.build, nn.Module):
            return copy.deepcopy(self.build)  # noqa: TID251 - the user's own module must not change
        module = self.build()
        if not isinstance(module, nn.Module):
            raise InputError(f"Net's build must return a torch.nn.Module, got {type(module).__name__}.")
        return module

    def _fresh(self) -> nn.Module:
        """A new module, whose frozen values are those of every process."""
        with Seed(self.seed).fold("frozen").ambient():
            return self._make()

    def _resident(self) -> Resident:
        if "resident" not in self._cell:
            module = self._fresh()
            fast = own(module) if self.fast_kernels is None else self.fast_kernels
            self._cell["resident"] = Resident(module, self.frozen, self.channels_last, fast)
        resident: Resident = self._cell["resident"]
        return resident

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        if isinstance(self.build, nn.Module):
            raise InputError(
                "This Net holds a ready-made module, which another process cannot rebuild. Give Net the class or a "
                "function that builds it, Net(MyModule) or Net.of(MyModule, width=64), or use engine='local'."
            )
        names = ("frozen", "channels_last", "inputs", "seed", "precision", "fast_kernels", "capture")
        told = {n: getattr(self, n) for n in names}
        return (self.build,), told if self.task is None else {**told, "task": self.task}


def _keep_input(seen: Params, name: str, layer: nn.Module, given: tuple[Tensor, ...], out: object) -> None:
    seen[name] = given[0].detach()


def logits_of(out: object) -> Tensor:
    """The class scores in what a network returned: the tensor itself, its ``logits``, or its first item."""
    if isinstance(out, Tensor):
        return out
    found = getattr(out, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(out, Sequence) and out and isinstance(out[0], Tensor):
        return out[0]
    raise InputError(f"No class scores in the network's output of type {type(out).__name__}.")
