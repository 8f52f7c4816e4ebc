"""A step of training on tape: the kernels that a loss and its gradient run, played again without autograd.

For small networks most of a step is not arithmetic: calls of modules, the graph that autograd builds and walks. A tape
has the kernels alone, in their order and with their arguments, so what it gives is equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Outputs = tuple[Tensor, ...]
Player = Callable[..., Outputs]  # called with the tensors that change from step to step

_aten = torch.ops.aten
_ALIASES = {_aten.detach.default, _aten.alias.default}
_SAME = (
    "mm", "bmm", "addmm", "baddbmm", "t", "relu", "tanh", "sigmoid", "permute", "as_strided", "unsqueeze", "clone",
    "convolution", "_log_softmax", "_log_softmax_backward_data", "native_layer_norm", "index_select",
)  # fmt: skip
_QUICK: dict[Any, Any] = {  # the same kernels behind a shorter call, with the same arguments
    **{getattr(_aten, name).default: getattr(torch, name) for name in _SAME},
    **{getattr(_aten, name).Tensor: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    _aten.sum.dim_IntList: torch.sum,
    _aten.transpose.int: torch.transpose,
    _aten.select.int: torch.select,
    _aten.view.default: Tensor.view,
    _aten.expand.default: Tensor.expand,
    _aten.new_zeros.default: Tensor.new_zeros,
    _aten.add_.Tensor: Tensor.add_,
    _aten.copy_.default: Tensor.copy_,
    _aten._unsafe_view.default: Tensor.view,
    _aten.empty.memory_format: torch.empty,
    _aten.max_pool2d_with_indices.default: torch._C._nn.max_pool2d_with_indices,
    _aten.avg_pool2d.default: torch._C._nn.avg_pool2d,
    _aten.gelu.default: torch._C._nn.gelu,
}


class CannotRecord(Exception):
    """What was done cannot be done again from a tape."""


class Recorder(TorchDispatchMode):
    """Writes down every kernel that runs inside."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first use imports all of torch's compiler

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out


class Tape:
    """What was recorded, as a function of the tensors that stay in a visit and of those that change in every step.

    Args:
        recorder: The step.
        stable: The tensors that stay the same objects for a whole visit (weights, what is fixed).
        moving: Those of the step (a batch).
        outputs: What the step gave.
    """

    def __init__(
        self, recorder: Recorder, stable: Sequence[Tensor], moving: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        source = _Source(recorder, stable, moving, outputs)
        place: dict[str, Any] = dict(source.values)
        exec(compile(source.text, "<tape>", "exec"), place)
        self._bind: Callable[..., Player] = place["bind"]

    def bound(self, stable: Sequence[Tensor]) -> Player:
        """The step with these tensors."""
        with torch._C._AutoDispatchBelowAutograd():
            return self._bind(*stable)


class _Source:
    """The text of a tape: ``bind`` takes what is stable, makes the views of it, and returns ``play``."""

    def __init__(
        self, recorder: Recorder, stable: Sequence[Tensor], moving: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.values: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.places: dict[Any, str] = {}  # the same by where in memory a tensor is
        self.made: set[str] = set()  # in the step
        self.owned: set[str] = set()  # those whose memory is the step's own
        self.once: set[str] = set()  # the same for a whole visit
        self.lines: list[list[str]] = []
        self.first: list[str] = []
        self.last_use: dict[str, int] = {}
        self.kept = [recorder.calls, stable, moving, outputs]  # so that no identity is given twice
        for kind, tensors in (("s", stable), ("m", moving)):
            for number, tensor in enumerate(tensors):
                self.names.setdefault(id(tensor), f"{kind}{number}")
        self.once.update(f"s{n}" for n in range(len(stable)))
        for func, args, kwargs, out in recorder.calls:
            self._call(func, args, kwargs, out)
        results = [self._result(out) for out in outputs]
        self._forget(set(results))
        inputs = [", ".join(f"{k}{n}" for n in range(len(t))) for k, t in (("s", stable), ("m", moving))]
        body = "".join(f"        {'; '.join(line)}\n" for line in self.lines)
        before = "".join(f"    {line}\n" for line in self.first)
        self.text = (
            f"def bind({inputs[0]}):\n{before}    def play({inputs[1]}):\n{body}"
            f"        return ({', '.join(results)},)\n    return play\n"
        )

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            raise CannotRecord(f"{func} is not one kernel")
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise CannotRecord(f"{func} depends on values")
        if func in _ALIASES:
            self.names[id(out)] = self._name(args[0])
            return
        self._check_writes(func, args, kwargs)
        used: list[str] = []
        given = [self._text(a, used) for a in args] + [f"{k}={self._text(a, used)}" for k, a in kwargs.items()]
        once = bool(used) and func.is_view and all(name in self.once for name in used)
        own = not func.is_view or all(name in self.owned for name in used)
        target = self._target(out, once, own)
        call = self._value(_QUICK.get(func, func._op))
        line = f"{target} = {call}({', '.join(given)})"
        if once:
            self.first.append(line)
            return
        for name in used:
            self.last_use[name] = len(self.lines)
        self.lines.append([line])

    def _check_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A tape may write into what it made, not into what it was given."""
        if not func._schema.is_mutable:
            return
        for spec, value in _bound(func._schema.arguments, args, kwargs):
            writes = spec.alias_info is not None and spec.alias_info.is_write
            for tensor in value if isinstance(value, tuple | list) else (value,):
                if writes and isinstance(tensor, Tensor) and self._name(tensor) not in self.owned:
                    raise CannotRecord(f"{func} writes into a tensor from outside")

    def _text(self, value: Any, used: list[str]) -> str:
        if isinstance(value, Tensor):
            used.append(self._name(value))
            return used[-1]
        if isinstance(value, tuple | list):
            return "[" + ", ".join(self._text(v, used) for v in value) + "]"
        if isinstance(value, torch.Generator):
            raise CannotRecord("it draws from a generator of its own")
        if value is None or isinstance(value, bool | int):
            return repr(value)
        return self._value(value)

    def _name(self, tensor: Tensor) -> str:
        """The name of a tensor; one from outside is a constant."""
        name = self.names.get(id(tensor)) or self.places.get(_place(tensor))  # Parameter(t) is t by another identity
        if name is None:
            name = self._value(tensor.detach())
            self.once.add(name)
        self.names[id(tensor)] = name
        return name

    def _value(self, value: Any) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name

    def _target(self, out: Any, once: bool, own: bool) -> str:
        if isinstance(out, tuple | list) and out:
            return "".join(f"{self._target(o, once, own)}, " for o in out).rstrip()
        if not isinstance(out, Tensor) or id(out) in self.names:  # or it was written in place
            return "_"
        name = self.names[id(out)] = f"v{len(self.names)}"
        self.places.setdefault(_place(out), name)
        if once:
            self.once.add(name)
        else:
            self.made.add(name)
            self.last_use[name] = len(self.lines)
            self.owned |= {name} if own else set()
        return name

    def _result(self, tensor: Tensor) -> str:
        name = self._name(tensor)
        if name not in self.owned:
            raise CannotRecord("a result is not the step's own")
        return name

    def _forget(self, results: set[str]) -> None:
        """Let go of every tensor after its last use."""
        for name in sorted(self.made - results):
            self.lines[self.last_use[name]].append(f"del {name}")


def _place(tensor: Tensor) -> Any:
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _bound(arguments: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What was given for each argument of a kernel."""
    for number, spec in enumerate(arguments):
        if number < len(args):
            yield spec, args[number]
        elif spec.name in kwargs:
            yield spec, kwargs[spec.name]
