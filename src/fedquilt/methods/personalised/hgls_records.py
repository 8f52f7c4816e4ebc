"""What HGLS keeps and sends, and the linear heads that stay with its clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Codec, plain
from fedquilt.core.net import Net
from fedquilt.core.params import Params, at_home, either, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.head_search import FeatureRows
from fedquilt.records.declared import Count
from fedquilt.records.record import record


@record(name="fedquilt.methods.hgls_records:Peer", written={"gradient": "slope"})
class Peer:
    """A client's head gradient as it travelled, and the round it is of."""

    client: Any
    round: int
    gradient: Any


@record(name="fedquilt.methods.hgls_records:Tally")
class GradientTally:
    """Over the clients that searched: gradients they were given, gradients that pointed their way, gradients they
    took."""

    candidates: Count = 0
    aligned: Count = 0
    taken: Count = 0


@record(name="fedquilt.methods.hgls_records:SearchServer")
class SearchServer:
    """The base's state; the mean head, for those who have none; the gradients; and what was found last.

    ``chosen``: which gradients a client is sent, if not all; ``met``: who has trained; ``holders``: who has already
    been brought the newest body.
    """

    base: Any
    head: Params
    peers: tuple[Peer, ...]
    chosen: dict[Any, tuple[int, ...]]
    met: tuple[Any, ...]
    holders: tuple[Any, ...]
    tally: GradientTally


@record(name="fedquilt.methods.hgls_records:SearchClient", written={"gradient": "slope"})
class SearchClient:
    """The base's state at the client, its own gradient, a body it will need again, and the memory of the gradient's
    codec."""

    base: Any
    gradient: Params
    kept: Any
    memory: Any


@record(name="fedquilt.methods.hgls_records:Invite")
class Invite:
    """What the base sends (None to those who hold it already), and a head for those who never trained."""

    base: Any
    head: Params


@record(name="fedquilt.methods.hgls_records:Others", written={"gradients": "slopes"})
class Others:
    """What the base will send next (None when the search is made on the client's own body), and gradients, unnamed."""

    base: Any
    gradients: tuple[Any, ...]


@record(name="fedquilt.methods.hgls_records:HeadUpload", written={"gradient": "slope"})
class HeadUpload:
    """The head ({} if it stays home), its gradient as it travels, and the base's upload."""

    head: Params
    gradient: Any
    base: Any


@dataclass(frozen=True)
class Inside:
    """A codec of the base's messages, inside those of a method that wraps them."""

    codec: Codec

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Seed) -> tuple[object, object]:
        """The base's part as its codec says."""
        wire, memory = self.codec.encode(upload.base, None if sent is None else sent.base, memory, seed)
        return replace(upload, base=wire), memory

    def decode(self, wire: Any, sent: Any) -> Any:
        """The same, back again."""
        return replace(wire, base=self.codec.decode(wire.base, None if sent is None else sent.base))


def inside(codec: Codec) -> Codec:
    """The codec on the base's part; plain stays plain."""
    return codec if codec == plain else Inside(codec)


WEIGHT, BIAS = "head.weight", "head.bias"
BLOCK = 32  # rows at a time: what fits a cache is fastest
is_head = under("head")


def with_own_heads(base: Any, method: str) -> Any:
    """The same base with a private head; refused where ``method`` could not work on it."""
    net = getattr(base, "net", None)
    if not isinstance(net, Net) or not net.has_linear_head or WEIGHT not in net.trainable:
        raise InputError(
            f"{method} needs a network that computes head(features(x)), where features and head are its submodules and "
            "head is a torch.nn.Linear that is trained. The image and vector models of fedquilt.models are built so; "
            "give your own module these two parts."
        )
    exchanges = base.exchanges()
    if len(exchanges) != 1:
        raise InputError(
            f"{method} needs a base whose rounds have one exchange, but {type(base).__name__} has "
            f"{', '.join(e.name for e in exchanges)}. Use FedAvg, FedProx, FedRep, SCAFFOLD or a server optimiser."
        )
    return _rehomed(base, method)


def _rehomed(base: Any, method: str) -> Any:
    if isinstance(base, FedAvg):
        private = base.parts.private
        return base if private(WEIGHT) else replace(base, parts=at_home(either(private, is_head)))
    plain = all(getattr(type(base), n, None) is getattr(OnBase, n) for n in ("personal_model", "predict"))
    if not plain or not isinstance(getattr(base, "base", None), OnBase | FedAvg):
        raise InputError(
            f"{method} cannot be combined with {type(base).__name__}: its clients do not use the head that they "
            "train in its "
            "exchange. Use FedAvg, FedProx, FedRep, SCAFFOLD or a server optimiser."
        )
    return replace(base, base=_rehomed(base.base, method))


def as_matrix(head: Params) -> Tensor:
    """[W | b], or W if there is no bias."""
    return torch.cat([head[WEIGHT], head[BIAS][:, None]], 1) if BIAS in head else head[WEIGHT]


def as_params(matrix: Tensor, like: Params) -> Params:
    """The named tensors of a matrix."""
    if BIAS not in like:
        return {WEIGHT: matrix.contiguous()}
    found = {WEIGHT: matrix[:, :-1].contiguous(), BIAS: matrix[:, -1].contiguous()}
    return {n: found[n] for n in like}


def rows_of(net: Net, model: Params, table: Table | None) -> FeatureRows:
    """The feature vectors of all rows in evaluation mode, with a 1 at the end if the head has a bias."""
    if table is None or not len(table):
        width = as_matrix(model).shape[1]
        return FeatureRows(model[WEIGHT].new_zeros(0, width), torch.zeros(0, dtype=torch.long))
    mine = net.own(model)  # in the layout the network runs with, which halves the time
    with torch.no_grad():
        blocks = [(net.split(mine, batch).features, batch.y) for batch in table.blocks(BLOCK)]
    z, y = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return FeatureRows(torch.cat([z, z.new_ones(len(z), 1)], 1) if BIAS in model else z, y)
