"""What a user's code does by its text, and which values it can reach beside its arguments."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn

from fedquilt.core.capture.marks import STANDARD, Mark, Marker, belongs

LIBRARY = ("fedquilt", "torch")
_KNOWN = (
    *LIBRARY,
    "builtins",
    "functools",
    "collections",
    "operator",
    "math",
    "numpy",
    "typing",
    "types",
    "abc",
    "dataclasses",
    "contextlib",
    "itertools",
    "enum",
    "copy",
    "warnings",
    "re",
    "einops",
)
_ACTS = {"print", "input", "breakpoint", "open", "exec", "eval", "globals", "setattr", "delattr", "__import__"}
_ACTING = {id(vars(builtins)[name]): name for name in _ACTS}  # under whatever name they are called
_ASKS = {  # of any object
    "register_hook",
    "manual_seed",
    "set_rng_state",
    "set_state",
    "seed",
    "record_function",
    "default_rng",
    "RandomState",
    "save",
    "savez",
    "savez_compressed",
    "savetxt",
}
_WORLD = {  # what changes by itself, or is seen outside
    "random",
    "_random",
    "time",
    "datetime",
    "secrets",
    "uuid",
    "os",
    "posix",
    "sys",
    "logging",
    "pdb",
    "ipdb",
    "io",
    "_io",
    "pathlib",
    "socket",
    "subprocess",
    "threading",
    "requests",
    "urllib",
    "wandb",
    "mlflow",
    "tensorboard",
    "tensorboardX",
    "comet_ml",
    "neptune",
    "aim",
    "loguru",
    "rich",
    "tqdm",
    "matplotlib",
}
_SETS = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}
_MAKES = ("__init__", "__new__", "__post_init__")
_ASIDE = {  # called when a class is made, or an object is shown or copied
    *_MAKES,
    "__init_subclass__",
    "__class_getitem__",
    "__repr__",
    "__str__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__copy__",
    "__deepcopy__",
    "__del__",
}
_WRAPPED = (types.MethodType, staticmethod, classmethod, property, functools.partial)
_NAMED_BY_CLASS = (types.FunctionType, staticmethod, classmethod, property)
_MANY = 1000  # entries of a list or dict whose code is read
_MOST = 5000  # values and functions that are followed


class Reach:
    """A user's functions, and the values that they can reach beside their arguments.

    Args:
        asked: Names of the functions of classes that it begins with.
        building: Whether modules are built, which sets their attributes.

    Attributes:
        foreign: Whether anything in it is not the library's.
        refusal: Why it is not pure, by its text alone.
        nets: The networks that are called.
    """

    def __init__(self, asked: Iterable[str] = ("forward", "__call__"), building: bool = False) -> None:
        self.foreign, self.building = False, building
        self.refusal: str | None = None
        self.nets: list[Any] = []
        self._asked = set(asked)
        self._by_name = False  # whether attributes are asked for by names that are made up
        self._kinds: dict[type, None] = {}
        self._done: dict[int, object] = {}
        self._values: dict[int, tuple[str, object]] = {}  # two may have one name
        self._cells: dict[int, tuple[str, types.CellType]] = {}
        self._globals: dict[tuple[int, str], tuple[str, Mapping[str, object]]] = {}

    @staticmethod
    def of_module(module: nn.Module) -> Reach:
        """What the parts of a network do when they are called."""
        reach = Reach()
        for part in module.modules():
            reach._kind(type(part))
        held = [
            (f"{type(p).__name__}.{n}", v) for p in module.modules() for n, v in vars(p).items() if n not in STANDARD
        ]
        return reach._settled(held)

    @staticmethod
    def of_building(build: object, module: nn.Module) -> Reach:
        """What is done when such a network is built."""
        reach = Reach(_MAKES, building=True)
        for part in module.modules():
            reach._kind(type(part))
        return reach._settled([(getattr(build, "__name__", "build"), build)])

    @staticmethod
    def of_loss(loss: object) -> Reach:
        """What a loss does: functions, objects that are called, and whatever they hold."""
        return Reach()._settled([(type(loss).__name__, loss)])

    def look(self, marker: Marker) -> Iterator[tuple[str, Mark]]:
        """Every value that was found, with its mark of now."""
        for name, value in self._values.values():
            yield name, marker.mark(value)
        for name, cell in self._cells.values():
            yield name, marker.mark(_content(cell))
        for (_, key), (name, space) in self._globals.items():
            yield name, marker.mark(space.get(key))

    def _settled(self, held: Iterable[tuple[str, object]]) -> Reach:
        """Follow these values, and read every function of a user's class that anything asks for."""
        done: set[tuple[type, str]] = set()
        try:
            for name, value in held:
                self._value(name, value)
            while todo := {(k, n) for k in self._kinds for n in self._names(k)} - done:
                done |= todo
                for kind, name in sorted(todo, key=lambda pair: (pair[0].__qualname__, pair[1])):
                    for found in _looked_up(kind, name):
                        self._value(f"{kind.__name__}.{name}", found)
        except RecursionError:
            self._refuse("it can reach more than is worth looking at")
        return self

    def _names(self, kind: type) -> Iterable[str]:
        """What may be asked of a class."""
        if not self._by_name:
            return self._asked
        return {*self._asked, *(n for each in kind.__mro__ for n in vars(each) if not n.startswith("__"))}

    # Values

    def _value(self, name: str, value: object) -> None:
        """Follow a value that the code holds or names."""
        if value is None or isinstance(value, bool | int | float | str | bytes | Tensor) or id(value) in self._done:
            return
        if len(self._done) >= _MOST:
            self._refuse("it can reach more than is worth looking at")
            return
        self._done[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, _WRAPPED):
            for part in _unwrapped(value):
                self._value(name, part)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            self._builtin(name, value)
        elif isinstance(value, types.ModuleType):
            if value is builtins or not (self._world(name, value) or _top(value) in _KNOWN):
                self._refuse(f"{name} leads to all of {value.__name__}")
        elif isinstance(value, type):
            if not self._world(name, value):
                self._made(value)
        elif isinstance(value, Mapping | list | tuple):
            for part in islice(value.values() if isinstance(value, Mapping) else value, _MANY):
                self._value(name, part)
        else:
            self._object(name, value)

    def _builtin(self, name: str, value: types.BuiltinFunctionType | types.MethodWrapperType) -> None:
        """A function written in C, with the object whose method it is."""
        if id(value) in _ACTING:
            self._refuse(f"{name} calls {_ACTING[id(value)]}")
        held = value.__self__
        self._world(name, value if isinstance(held, types.ModuleType | None) else type(held))
        if not isinstance(held, types.ModuleType | type):
            self._value(name, held)

    def _made(self, kind: type) -> None:
        """A class that is named, and may be called."""
        self._kind(kind)
        for name in _MAKES:
            for found in _looked_up(kind, name):
                self._value(f"{kind.__name__}.{name}", found)

    def _object(self, name: str, value: object) -> None:
        kind = type(value)
        if self._world(name, kind):
            return
        if belongs(kind, "fedquilt"):
            if kind.__name__ == "Net":
                self.nets.append(value)
            elif is_dataclass(value):
                for field in fields(value):
                    self._value(name, getattr(value, field.name, None))
        elif isinstance(value, nn.Module):
            for part in value.modules():
                self._kind(type(part))
        elif belongs(kind, *_KNOWN):
            self._value(name, getattr(value, "__wrapped__", None))
        else:
            self._kind(kind)
            self._values[id(value)] = name, value
            for key, part in getattr(value, "__dict__", {}).items():
                self._value(f"{name}.{key}", part)

    def _kind(self, kind: type) -> None:
        """A class whose functions are read where they are asked for, and what a user's class itself holds."""
        self.foreign = self.foreign or not belongs(kind, *_KNOWN)
        if kind in self._kinds or belongs(kind, *_KNOWN):
            return
        self._kinds[kind] = None
        for each in kind.__mro__:
            if not belongs(each, *_KNOWN):
                for name, value in vars(each).items():
                    special = name.startswith("__")
                    if isinstance(value, _NAMED_BY_CLASS) or not (special or hasattr(value, "__get__")):
                        self._globals[id(each), name] = f"{each.__name__}.{name}", vars(each)
                    if special and isinstance(value, _NAMED_BY_CLASS) and name not in _ASIDE:
                        self._asked.add(name)  # by an operator, a with, a for, ...

    def _world(self, name: str, thing: object) -> bool:
        """Whether something belongs to what changes by itself, or is seen outside."""
        place = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
        top = place.split(".")[0] if isinstance(place, str) else ""
        found = top in _WORLD or str(place).startswith("torch.utils.tensorboard")
        if found:
            self._refuse(f"{name} uses {top.lstrip('_')}")
        return found

    def _refuse(self, why: str) -> None:
        self.foreign, self.refusal = True, self.refusal or why

    # Functions

    def _function(self, function: types.FunctionType) -> None:
        if belongs(function, "torch"):
            return
        name, of_user = function.__qualname__, not belongs(function, "fedquilt")
        self.foreign = self.foreign or of_user
        if of_user and (belongs(function, *_KNOWN) or self._world(name, function)):
            return
        for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cells[id(cell)] = f"{free} of {name}", cell
            held = _content(cell)
            if free == "__class__" and isinstance(held, type):  # for super()
                self._kind(held)
            else:
                self._value(f"{free} of {name}", held)
        if not of_user:
            return
        beside = {"defaults": function.__defaults__, "defaults by name": function.__kwdefaults__}
        for kind, given in {**beside, "attributes": vars(function)}.items():
            if given:
                self._values[id(given)] = f"{kind} of {name}", given
                self._value(name, given)
        for code in _codes(function.__code__):
            self._read(function, code)

    def _read(self, function: types.FunctionType, code: types.CodeType) -> None:
        name, space = function.__qualname__, function.__globals__
        begins = self.building or function.__name__ in ("__init__", "__post_init__", "__new__")
        modules: list[types.ModuleType] = []
        before: dis.Instruction | None = None
        for line in dis.get_instructions(code):
            what = line.argval
            if line.opname in _SETS or (line.opname == "STORE_DEREF" and what in code.co_freevars):
                if "ATTR" not in line.opname or not (begins or _of_local(before, code)):
                    self._refuse(f"{name} sets {what!r}")
            elif line.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                modules.extend(self._global(name, space, what))
            elif line.opname == "IMPORT_NAME" and (what == "builtins" or what.split(".")[0] not in _KNOWN):
                self._refuse(f"{name} imports {what}")
            elif line.opname == "IMPORT_FROM":
                self._attribute(name, [], what)
            elif line.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                self._attribute(name, modules, what)
            before = line

    def _attribute(self, name: str, modules: list[types.ModuleType], what: str) -> None:
        """Something is asked for an attribute, perhaps one of these modules, which may lead to another one."""
        self._asked.add(what)
        if what in _ASKS:
            self._refuse(f"{name} calls {what}")
        for module in tuple(modules):
            if what in vars(module):
                modules.extend(self._found(name, f"{module.__name__}.{what}", vars(module), what))

    def _global(self, name: str, space: Mapping[str, Any], what: str) -> Iterator[types.ModuleType]:
        """Follow a global; modules of the user's own are given back, for what is asked of them."""
        if what in _ASKS:
            self._refuse(f"{name} calls {what}")
        if what in space:
            yield from self._found(name, f"{space.get('__name__')}.{what}", space, what)
        elif what in _ACTS and hasattr(builtins, what):
            self._refuse(f"{name} calls {what}")
        elif what == "getattr":
            self._by_name = True

    def _found(self, name: str, label: str, space: Mapping[str, object], what: str) -> Iterator[types.ModuleType]:
        """Follow what a module has under a name, whatever it will be later."""
        value = space[what]
        self._globals[id(space), what] = label, space
        if isinstance(value, types.ModuleType) and _top(value) not in (*_KNOWN, *_WORLD):
            yield value
        else:
            code = isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type)
            self._value(name if code else label, value)


def _top(module: types.ModuleType) -> str:
    """The package of a module."""
    return module.__name__.split(".")[0]


def _unwrapped(value: object) -> Iterator[object]:
    """What is called, and with what, where a function is bound or wrapped."""
    if isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    else:
        yield value.fget if isinstance(value, property) else getattr(value, "__func__", None)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _of_local(line: dis.Instruction | None, code: types.CodeType) -> bool:
    """Whether an attribute is set on a local variable other than a method's own object: on ctx, or an output."""
    if line is None or "LOAD_FAST" not in line.opname:
        return False
    name = line.argval[-1] if isinstance(line.argval, tuple) else line.argval
    first = code.co_varnames[0] if code.co_argcount else None
    return bool(name == "ctx" or name not in ("self", first))


def _looked_up(kind: type, name: str) -> Iterator[object]:
    """What a user's class and those of its bases that are a user's, too, have under a name."""
    for each in kind.__mro__:
        if name in vars(each) and not belongs(each, *_KNOWN):
            yield vars(each)[name]


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
