"""A step of training captured: the kernels that a loss and its gradient run, played again without autograd.

For small networks most of a step is not arithmetic: calls of modules, the graph that autograd builds and walks. A
captured step has the kernels alone, in their order and with their arguments, so what it gives is equal to the last bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedquilt.kernels.calls import INTO, QUICK

Outputs = tuple[Tensor, ...]
Args = tuple[Any, ...]  # of a kernel: tensors, numbers, and rows of them
Kwargs = dict[str, Any]
Call = tuple[object, Args, Kwargs, object]  # a kernel, its arguments, and what it gave
Form = tuple[torch.dtype, torch.Size, tuple[int, ...]]  # of a tensor: dtype, shape, strides
Player = Callable[..., Outputs]  # called with the tensors that change from step to step

_aten = torch.ops.aten
_ALIGN = 64
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_ALIASES = {_aten.detach.default, _aten.alias.default}


class CannotRecord(Exception):
    """What was done cannot be done again from a captured step."""


class Recorder(TorchDispatchMode):
    """Writes down every kernel that runs inside."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the first use imports all of torch's compiler

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out


class CapturedStep:
    """What was recorded, as a function of the tensors that stay in a client update and of those that change in every
    step.

    Args:
        recorder: The step.
        stable: The tensors that stay the same objects for a whole client update (weights, what is fixed).
        moving: Those of the step (a batch).
        outputs: What the step gave.
        fresh: How many of them are new in every step. The others are in memory of the client update's own, where the
            next step of the client update overwrites them.
    """

    def __init__(
        self,
        recorder: Recorder,
        stable: Sequence[Tensor],
        moving: Sequence[Tensor],
        outputs: Sequence[Tensor],
        fresh: int | None = None,
    ) -> None:
        source = _Source(recorder, stable, moving, outputs, len(outputs) if fresh is None else fresh)
        place: dict[str, Any] = dict(source.values)
        exec(compile(source.text, "<captured step>", "exec"), place)
        self._lay: Callable[[Tensor], Callable[..., Player]] = place["lay"]
        self._size = source.size
        self._laid: tuple[Tensor, Callable[..., Player]] | None = None

    def bound(self, stable: Sequence[Tensor]) -> Player:
        """The step with these tensors. It is played in this thread alone."""
        with torch._C._AutoDispatchBelowAutograd():
            memory, laid = _memory(self._size), self._laid
            if laid is None or laid[0] is not memory:
                laid = self._laid = (memory, self._lay(memory))
            return laid[1](*stable)


_here = threading.local()


def _memory(size: int) -> Tensor:
    """The memory that all captured steps of a thread work in, one step after the other."""
    found: Tensor | None = getattr(_here, "memory", None)
    if found is None or len(found) < size:
        found = _here.memory = torch.empty(size, dtype=torch.uint8)
    return found


def _cut(memory: Tensor, start: int, length: int, form: Form) -> Tensor:
    """A tensor there, with a storage of its own: places in views count from its beginning."""
    dtype, shape, strides = form
    count = length // dtype.itemsize
    return torch.frombuffer(memory.numpy(), dtype=dtype, count=count, offset=start).as_strided(shape, strides)


def _new(form: Form) -> Tensor:
    dtype, shape, strides = form
    return torch.empty_strided(shape, strides, dtype=dtype)


class _Source:
    """The text of a captured step: ``lay`` takes the memory to work in and returns ``bind``; that takes what is stable,
    makes the views of it, and returns ``play``.

    What a step makes and does not give away is at fixed places in the memory of its thread, so that views of it, too,
    are made once. Places are given by when their contents are needed: later ones take those of earlier
    ones, which are still in a cache.
    """

    def __init__(
        self,
        recorder: Recorder,
        stable: Sequence[Tensor],
        moving: Sequence[Tensor],
        outputs: Sequence[Tensor],
        fresh: int,
    ) -> None:
        self.values: dict[str, object] = {}
        self.names: dict[int, str] = {}
        self.places: dict[Hashable, str] = {}  # the same by where in memory a tensor is
        self.made: set[str] = set()  # in the step
        self.owned: set[str] = set()  # those whose memory is the step's own
        self.once: set[str] = set()  # the same for a whole client update
        self.lines: list[list[str]] = []
        self.first: list[str] = []
        self.laid: set[str] = set()  # the same for the captured step
        self.laying: list[str] = []
        self.last_use: dict[str, int] = {}
        self.kept = [recorder.calls, stable, moving, outputs]  # so that no identity is given twice
        reshaped = (args[0] for func, args, _, _ in recorder.calls if _reshapes(func))
        self.given_away = {_storage(tensor) for tensor in (*outputs[:fresh], *reshaped)}
        self.lasting = {_storage(tensor) for tensor in outputs[fresh:]}
        self.fixed: dict[int, tuple[str, int, int, Form]] = {}  # by storage: name, line, bytes, form
        self.storages: dict[str, int] = {}
        self.until: dict[int, int] = {}  # the last line that needs a storage
        self.turned: dict[str, str] = {}  # transposes, and of what
        for kind, tensors in (("s", stable), ("m", moving)):
            for number, tensor in enumerate(tensors):
                self.names.setdefault(id(tensor), f"{kind}{number}")
        self.once.update(f"s{n}" for n in range(len(stable)))
        for func, args, kwargs, out in recorder.calls:
            self._call(func, args, kwargs, out)
        results = [self._result(out) for out in outputs]
        self._forget(set(results))
        self.text = self._written(len(stable), len(moving), results)

    def _written(self, stable: int, moving: int, results: list[str]) -> str:
        """The lines together; sets ``size``."""
        laying = _indented(2, [*self._places(), *self.laying])
        before = _indented(4, self.first)
        body = _indented(8, ["; ".join(line) for line in self.lines])
        return (
            f"def lay(memory):\n{laying}  def bind({_numbered('s', stable)}):\n{before}"
            f"    def play({_numbered('m', moving)}):\n{body}"
            f"        return ({', '.join(results)},)\n    return play\n  return bind\n"
        )

    def _call(self, func: object, args: Args, kwargs: Kwargs, out: object) -> None:
        if not isinstance(func, torch._ops.OpOverload):
            raise CannotRecord(f"{func} is not one kernel")
        if not _BY_VALUE.isdisjoint(func.tags):
            raise CannotRecord(f"{func} depends on values")
        known = self._known(func, args)
        if known is not None:
            self.names[id(out)] = known
            return
        self._check_writes(func, args, kwargs)
        used: list[str] = []
        given = self._given(args, kwargs, used)
        view = func.is_view or func is _aten._unsafe_view.default
        once = bool(used) and view and all(name in self.once for name in used)
        own = not view or all(name in self.owned for name in used)
        target = "_"
        if self._fixes(func, out):
            line = self._fix(func, out, given)
        else:
            target = self._target(out, once, own)
            line = f"{target} = {self._value(QUICK.get(func, func._op))}({', '.join(given)})"
            if func is _aten.t.default:
                self.turned[target] = used[0]
        self._put(line, target, used, once)

    def _given(self, args: Args, kwargs: Kwargs, used: list[str]) -> list[str]:
        """The text of each argument; the tensors among them are ``used``."""
        return [self._text(a, used) for a in args] + [f"{k}={self._text(a, used)}" for k, a in kwargs.items()]

    def _known(self, func: object, args: Args) -> str | None:
        """The name of what a kernel gives, where that is there already."""
        if func in _ALIASES:
            return self._name(args[0])
        return self.turned.get(self._name(args[0])) if func is _aten.t.default else None

    def _put(self, line: str, target: str, used: list[str], once: bool) -> None:
        """A line goes where it is made as rarely as can be: for the captured step, for a client update, or in every
        step."""
        if once and all(name in self.laid for name in used):
            self.laid.add(target)
            self.laying.append(line)
        elif once:
            self.first.append(line)
        else:
            for name in used:
                self.last_use[name] = len(self.lines)
                self.until[self.storages.get(name, 0)] = len(self.lines)
            self.lines.append([line])

    def _fixes(self, func: object, out: object) -> bool:
        """Whether what a kernel makes has a place of its own in the memory of the thread."""
        made = out if isinstance(out, tuple) else (out,)
        return (func in INTO or func is _aten.empty.memory_format) and all(
            isinstance(t, Tensor) and _whole(t) and id(t) not in self.names and self._free(_storage(t)) for t in made
        )

    def _free(self, storage: int) -> bool:
        """Whether a storage is neither given away nor at its place already."""
        return storage not in self.given_away and storage not in self.fixed

    def _fix(self, func: object, out: object, given: list[str]) -> str:
        made = out if isinstance(out, tuple) else (out,)
        names = []
        for tensor in made:
            name = self.names[id(tensor)] = f"v{len(self.names)}"
            self.places.setdefault(_place(tensor), name)
            self.once.add(name)
            self.owned.add(name)
            self.storages[name] = storage = _storage(tensor)
            form = (tensor.dtype, tensor.shape, tensor.stride())
            names.append(name)
            if storage in self.lasting:
                self.first.append(f"{name} = {self._value(_new)}({self._value(form)})")
                continue
            self.laid.add(name)
            self.fixed[storage] = (name, len(self.lines), tensor.numel() * tensor.element_size(), form)
            self.until[storage] = len(self.lines)
        if func is _aten.empty.memory_format:
            return "pass"
        call, how = INTO[func]
        place = names[0] if len(names) == 1 else f"({', '.join(names)})"
        return f"{self._value(call)}({how.format(args=', '.join(given), first=given[0], out=place)})"

    def _places(self) -> list[str]:
        """Lines that cut the memory, each piece where no other is at the same time; sets ``size``."""
        taken: list[tuple[int, int, int]] = []  # start, end, until which line
        found, self.size = [], 0
        for storage, (name, line, length, form) in self.fixed.items():
            taken = sorted(t for t in taken if t[2] >= line)
            start = 0
            for low, high, _ in taken:
                if low - start >= length:
                    break
                start = max(start, -(-high // _ALIGN) * _ALIGN)
            taken.append((start, start + length, self.until[storage]))
            self.size = max(self.size, start + length)
            found.append(f"{name} = {self._value(_cut)}(memory, {start}, {length}, {self._value(form)})")
        return found

    def _check_writes(self, func: Any, args: Args, kwargs: Kwargs) -> None:
        """A captured step may write into what it made, not into what it was given."""
        if not func._schema.is_mutable:
            return
        for spec, value in _bound(func._schema.arguments, args, kwargs):
            writes = spec.alias_info is not None and spec.alias_info.is_write
            for tensor in value if isinstance(value, tuple | list) else (value,):
                if writes and isinstance(tensor, Tensor) and self._name(tensor) not in self.owned:
                    raise CannotRecord(f"{func} writes into a tensor from outside")

    def _text(self, value: object, used: list[str]) -> str:
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
            self.laid.add(name)
        self.names[id(tensor)] = name
        return name

    def _value(self, value: object) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name

    def _target(self, out: object, once: bool, own: bool) -> str:
        if isinstance(out, tuple | list) and out:
            return "".join(f"{self._target(o, once, own)}, " for o in out).rstrip()
        if not isinstance(out, Tensor) or id(out) in self.names:  # or it was written in place
            return "_"
        name = self.names[id(out)] = f"v{len(self.names)}"
        self.places.setdefault(_place(out), name)
        self.storages[name] = _storage(out)
        self.owned |= {name} if own else set()
        if once:
            self.once.add(name)
        else:
            self.made.add(name)
            self.last_use[name] = len(self.lines)
        return name

    def _result(self, tensor: Tensor) -> str:
        name = self._name(tensor)
        if name not in self.owned:
            raise CannotRecord("a result is not the step's own")
        return name

    def _forget(self, results: set[str]) -> None:
        """Let go of every tensor after its last use."""
        for name in sorted(self.made - results):
            line = self.lines[self.last_use[name]]
            if self.turned.get(name) and line[0].startswith(f"{name} = "):
                line[0] = "pass"  # a transpose of which the transpose was wanted
            else:
                line.append(f"del {name}")


def _indented(depth: int, lines: Sequence[str]) -> str:
    return "".join(f"{' ' * depth}{line}\n" for line in lines)


def _numbered(kind: str, count: int) -> str:
    return ", ".join(f"{kind}{number}" for number in range(count))


def _reshapes(func: object) -> bool:
    """Whether it changes the form of a tensor in place: then what was made had another form than it has now."""
    return isinstance(func, torch._ops.OpOverload) and torch.Tag.inplace_view in func.tags


def _whole(tensor: Tensor) -> bool:
    """Whether a tensor on the CPU is all of its storage."""
    if tensor.device.type != "cpu" or tensor.numel() == 0 or tensor.storage_offset() != 0:
        return False
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _storage(tensor: Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


def _place(tensor: Tensor) -> Hashable:
    return _storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _bound(arguments: Sequence[Any], args: Args, kwargs: Kwargs) -> Iterator[tuple[Any, Any]]:
    """What was given for each argument of a kernel."""
    for number, spec in enumerate(arguments):
        if number < len(args):
            yield spec, args[number]
        elif spec.name in kwargs:
            yield spec, kwargs[spec.name]
