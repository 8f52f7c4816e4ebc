"""Methods around a method that averages: made around ``base``, or from a network and FedAvg's own settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature
from typing import Any, ClassVar, get_type_hints

from torch import Tensor

from fedquilt.core.exchange import Exchange
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site
from fedquilt.errors import InputError, did_you_mean
from fedquilt.methods.fedavg import FedAvg


class _Signature:
    """The signature of a class that leaves its constructor to OnBase: its own options, and FedAvg's."""

    def __get__(self, _: Any, cls: Any) -> Signature:
        if cls.__init__ is not OnBase.__init__ or "__dataclass_fields__" not in vars(cls):
            raise AttributeError("__signature__")
        given = [Parameter("objective", Parameter.POSITIONAL_OR_KEYWORD, annotation=Objective | Net)]
        hints = {**get_type_hints(FedAvg, include_extras=True), **get_type_hints(cls, include_extras=True)}
        own = _options(cls)
        defaults: Mapping[str, Any] = getattr(cls, "defaults")  # noqa: B009 - mypy takes cls for any dataclass here
        common = {name: value for name, value in {**_options(FedAvg), **defaults}.items() if name not in own}
        for name, value in {**own, **common}.items():
            if name != "objective" and not (name == "base" and value is Parameter.empty):
                given.append(Parameter(name, Parameter.KEYWORD_ONLY, default=value, annotation=hints.get(name)))
        return Signature(given)


def _options(cls: type[Any]) -> dict[str, Any]:
    """The options of a dataclass, with their defaults."""
    return {
        f.name: f.default_factory() if f.default_factory is not MISSING else _or_empty(f.default)
        for f in (fields(cls) if is_dataclass(cls) else ())
        if f.init
    }


def _or_empty(default: Any) -> Any:
    return Parameter.empty if default is MISSING else default


def _refuse_unknown(cls: type[object], options: Iterable[str], own: Iterable[str], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise InputError(f"{cls.__name__} has no option {name!r}{did_you_mean(name, (*own, *known), end='.')}")


class OnBase:
    """A method around another one, its ``base``: it answers every question of a method by asking the base, unless the
    class answers itself. A class may make another method of its base and leave the answers to that: its ``delegate``.
    ``plan`` is the exception: by default a round makes all of the method's own exchanges, in order.

    Subclasses marked ``@dataclass(frozen=True, init=False)`` have their own options as fields, check them in
    ``__post_init__``, and are made around ``base``, or from a network and FedAvg's settings:
    ``Scaffold(net, server_lr=0.5, batch_size=10)`` is ``Scaffold(base=FedAvg(net, batch_size=10), server_lr=0.5)``.
    Others may have their ``base`` as an attribute of the class.

    Args:
        objective: The network, or an objective to extend.
        base: What the method is around, instead of an objective and FedAvg's settings.
        options: The fields of the class, and FedAvg's.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, init=False)
        ... class Halved(OnBase):
        ...     share: float = 0.5
        >>> from fedquilt import Net, models
        >>> Halved(Net.of(models.MLP, features=64, classes=10), share=0.1).share
        0.1
    """

    base: Any
    __signature__ = _Signature()
    defaults: ClassVar[Mapping[str, Any]] = {}  # FedAvg's settings that are others here, unless they are given

    def __init__(self, objective: Objective | Net | None = None, *, base: Any = None, **options: Any) -> None:
        cls = type(self)
        own = _options(cls)
        own.pop("base", None)
        for name, default in own.items():
            value = options.pop(name, default)
            if value is Parameter.empty:
                raise InputError(f"{cls.__name__} needs {name}=...")
            object.__setattr__(self, name, value)
        if base is None and objective is None:
            base = getattr(cls, "base", None)
        if isinstance(base, str):  # a name, which ``around`` knows
            object.__setattr__(self, "base", base)
            base = None
        if (base is None) == (objective is None):
            raise InputError(f"{cls.__name__} needs either a network (or an objective), or base=...")
        _refuse_unknown(cls, options, own, () if base is not None else tuple(_options(FedAvg)))
        object.__setattr__(self, "base", base if objective is None else self.around(objective, **options))
        self.__post_init__()
        _ = self.delegate  # which checks its own options

    def around(self, objective: Objective | Net, **settings: Any) -> Any:
        """What the method is around, from a network and FedAvg's settings; the method's own options are known."""
        return FedAvg(objective, **{**self.defaults, **settings})

    def __describe__(self) -> tuple[Sequence[object], dict[str, object]]:
        """How another process makes it: of its options, and its base, which a class need not name among its fields."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.init}  # type: ignore[arg-type]
        return (), named if "base" in named else {**named, "base": self.base}

    def __post_init__(self) -> None:
        """Raise for options that cannot be."""

    # The answers of the base

    @property
    def delegate(self) -> Any:
        """Who answers what the class does not: the base, or another method that the class makes of it."""
        return self.base

    @property
    def net(self) -> Any:
        """The base's network, so that saved models are whole; None if it has none."""
        return getattr(self.delegate, "net", None)

    @property
    def pools_data(self) -> bool:
        """Whether the base trains on pooled data."""
        return bool(getattr(self.delegate, "pools_data", False))

    @property
    def needs_classes(self) -> str:
        """Why the base cannot learn anything but one class label for each row; '' if it can."""
        return str(getattr(self.delegate, "needs_classes", ""))

    @property
    def shared_start(self) -> bool:
        """Whether the private parts of all clients start with the same values, as the base's do."""
        return bool(getattr(self.delegate, "shared_start", False))

    @property
    def reconstructs(self) -> bool:
        """Whether the base's models guess hidden patches instead of classes; ``predict`` then gives their losses."""
        return bool(getattr(self.delegate, "reconstructs", False))

    def reported(self, state: Any) -> Mapping[str, float]:
        """As the base, if it tells anything: numbers of the last round for the metrics."""
        found: Mapping[str, float] = self.delegate.reported(state) if hasattr(self.delegate, "reported") else {}
        return found

    def warning(self, state: Any) -> str | None:
        """As the base, if it warns of anything."""
        found: str | None = self.delegate.warning(state) if hasattr(self.delegate, "warning") else None
        return found

    def init_server(self, seed: Seed) -> Any:
        """As the base."""
        return self.delegate.init_server(seed)

    def init_client(self, seed: Seed) -> Any:
        """As the base."""
        return self.delegate.init_client(seed)

    def exchanges(self) -> tuple[Exchange, ...]:
        """As the base."""
        exchanges: tuple[Exchange, ...] = self.delegate.exchanges()
        return exchanges

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """As the delegate, if it is not the base itself; otherwise every exchange, every round."""
        if self.delegate is not self.base:
            names: tuple[str, ...] = self.delegate.plan(state, round)
            return names
        return tuple(e.name for e in self.exchanges())

    def observe(self, state: Any, metrics: Mapping[str, float]) -> Any:
        """As the base."""
        return self.delegate.observe(state, metrics)

    def global_model(self, state: Any) -> Params | None:
        """As the base."""
        model: Params | None = self.delegate.global_model(state)
        return model

    def personal_model(self, download: Any, client: Any) -> Params:
        """As the base."""
        model: Params = self.delegate.personal_model(download, client)
        return model

    def select_model(self, download: Any, client: Any, site: Site) -> Params | None:
        """As the base, unless the class has its own answer to what a client uses; see
        :func:`fedquilt.core.deployed.deployed_model`."""
        select = getattr(self.delegate, "select_model", None)
        if select is None or type(self).personal_model is not OnBase.personal_model:
            return None
        model: Params | None = select(download, client, site)
        return model

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """As the base."""
        scores: Tensor = self.delegate.predict(params, batch)
        return scores
