"""Methods around a method that averages: made around ``base``, or from a network and FedAvg's own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Any, ClassVar, get_type_hints

from fedquilt.core.errors import InputError, did_you_mean
from fedquilt.core.exchange import OnBase
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.methods.fedavg import FedAvg


class _Signature:
    """The signature of a method's class: its own options, and those of what it is around."""

    def __get__(self, _: Any, cls: type[Any]) -> Signature:
        given = [Parameter("objective", Parameter.POSITIONAL_OR_KEYWORD, annotation=Objective | Net)]
        for name, value in {**_options(FedAvg), **cls.defaults, **_options(cls)}.items():
            if name not in ("objective", "base"):
                given.append(Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=_hints(cls).get(name)))
        return Signature(given)


def _options(cls: type[Any]) -> dict[str, Any]:
    """The options of a dataclass, with their defaults."""
    return {
        f.name: f.default_factory() if f.default_factory is not MISSING else _or_empty(f.default)
        for f in fields(cls)
        if f.init
    }


def _or_empty(default: Any) -> Any:
    return Parameter.empty if default is MISSING else default


def _hints(cls: type[Any]) -> dict[str, Any]:
    return {**get_type_hints(FedAvg, include_extras=True), **get_type_hints(cls, include_extras=True)}


class AroundFedAvg(OnBase):
    """A frozen dataclass with a field ``base``, whose other fields are its own options.

    ``Scaffold(net, server_lr=0.5, batch_size=10)`` is ``Scaffold(base=FedAvg(net, batch_size=10), server_lr=0.5)``:
    what is no option of the class goes to FedAvg. Subclasses are marked ``@dataclass(frozen=True, init=False)``; they
    check their options in ``__post_init__``, and may say in :meth:`around` what they are around instead.

    Args:
        objective: The network, or an objective to extend.
        base: What the method is around, instead of an objective and FedAvg's settings.
        options: The fields of the class, and FedAvg's.
    """

    __signature__ = _Signature()
    defaults: ClassVar[Mapping[str, Any]] = {}  # FedAvg's settings that are others here, unless they are given

    def __init__(self, objective: Objective | Net | None = None, *, base: Any = None, **options: Any) -> None:
        cls = type(self)
        own = {name: default for name, default in _options(cls).items() if name != "base"}
        for name, default in own.items():
            value = options.pop(name, default)
            if value is Parameter.empty:
                raise InputError(f"{cls.__name__} needs {name}=...")
            object.__setattr__(self, name, value)
        if (base is None) == (objective is None):
            raise InputError(f"{cls.__name__} needs either a network (or an objective), or base=...")
        known = () if base is not None else tuple(_options(FedAvg))
        for name in options:
            if name not in known:
                close = did_you_mean(name, (*own, *known))
                raise InputError(f"{cls.__name__} has no option {name!r}{close}.")
        object.__setattr__(self, "base", base if objective is None else self.around(objective, **options))
        self.__post_init__()

    @classmethod
    def around(cls, objective: Objective | Net, **settings: Any) -> Any:
        """What the method is around, from a network and FedAvg's settings."""
        return FedAvg(objective, **{**cls.defaults, **settings})

    def __post_init__(self) -> None:
        """Raise for options that cannot be."""
