"""HGLS by plain options, for recipes."""

from __future__ import annotations

from typing import Any, Literal

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Codec, plain
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import at_home, under
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.fedper import fedper
from fedquilt.methods.fedprox import fedprox
from fedquilt.methods.fedrep import fedrep
from fedquilt.methods.hgls import HGLS
from fedquilt.methods.scaffold import Scaffold
from fedquilt.pieces.codecs import hgc, hgc_legacy, hgc_rc
from fedquilt.pieces.head_search import HeadSearch

Base = Literal["fedavg", "fedper", "fedprox", "fedrep", "scaffold"]
Slopes = Literal["plain", "hgc", "hgc_rc", "hgc_legacy"]


def hgls(
    objective: Objective | Net, base: Base = "fedavg", mu: float = 0.01, head_epochs: int = 10,
    gradient: Literal["full", "last_batch"] = "full", search_base: Literal["aggregated", "local"] = "aggregated",
    search: Literal["greedy", "joint", "off"] = "greedy", step: Literal["cosine", "exact", "backtracking"] = "cosine",
    order: Literal["random", "aligned"] = "random", ridge: float = 0.01, least: float = 0.0,
    accept: Literal["train", "held_out", "valid"] = "train", held_out: float = 0.25, peers: int | None = None,
    max_age: int = 0, own_only: bool = False, drop_bias: bool = False, mean_head: bool = False,
    norms: Literal["average", "personal"] = "average", slopes: Slopes = "plain", num_bins: int = 16,
    lossless: Literal["none", "deflate", "gaps", "adaptive", "smallest"] = "none", **rest: Any,
) -> Any:  # fmt: skip
    """HGLS on a base that is called by its name.

    Args:
        objective: The network, or an objective.
        base: How models are trained and averaged. On FedAvg and on FedPer it is the same: HGLS makes heads private.
        mu, head_epochs: Of FedProx, of FedRep.
        search: As for :class:`HeadSearch`; "off" is the base alone.
        step, order, ridge, least: As for :class:`fedquilt.pieces.head_search.HeadSearch`.
        gradient, search_base, accept, held_out, peers, max_age, own_only, drop_bias, mean_head: As for
            :class:`HGLS`.
        norms: BatchNorm layers are averaged with the body, statistics too ("average"), or stay home ("personal").
        slopes: How slopes travel: as they are, or by a codec of this name.
        num_bins, lossless: Of that codec.
        rest: As for :class:`FedAvg`.
    """
    below = _base(objective, base, mu, head_epochs, norms, rest)
    if search == "off":
        return below
    return HGLS(
        base=below, search=HeadSearch(search, step, order, ridge, least), gradient=gradient, search_base=search_base,
        codec=_codec(slopes, num_bins, lossless), peers=peers, max_age=max_age, own_only=own_only,
        drop_bias=drop_bias, accept=accept, held_out=held_out, mean_head=mean_head,
    )  # fmt: skip


def _codec(slopes: Slopes, num_bins: int, lossless: Any) -> Codec:
    if slopes == "plain":
        return plain
    if slopes == "hgc_legacy":
        return hgc_legacy(num_bins=num_bins)
    return (hgc if slopes == "hgc" else hgc_rc)(num_bins=num_bins, lossless=lossless)


def _base(objective: Objective | Net, base: Base, mu: float, head_epochs: int, norms: str, rest: dict[str, Any]) -> Any:
    found = net_of(objective).norms if norms == "personal" else ()
    home = ("head", *found)
    if norms == "personal":
        if not found:
            raise InputError("norms = 'personal' needs a network with BatchNorm; this one has none. Leave it out.")
        if base not in ("fedrep", "fedper"):
            rest = {**rest, "parts": at_home(under(*home))}
    if base == "fedprox":
        return fedprox(objective, mu=mu, **rest)
    if base == "scaffold":
        return Scaffold(objective, **rest)
    if base == "fedrep":
        return fedrep(objective, head=home, head_epochs=head_epochs, **rest)
    if base == "fedper":
        return fedper(objective, head=home, **rest)
    return FedAvg(objective=objective, **rest)
