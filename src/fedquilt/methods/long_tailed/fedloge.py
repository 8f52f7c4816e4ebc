"""FedLoGe: features for one fixed sparse frame; beside it a global head for all and a local head at each client.

The network of FedLoGe: one body under a fixed frame, a global head and a local head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import Fixed, HasDelta, HasShared
from fedquilt.core.net import Net, logits_of
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, at_home, either, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Download, FedAvg, Server, Upload
from fedquilt.methods.long_tailed.losses import rebuilt, two_parts, with_counts
from fedquilt.methods.long_tailed.shares import answered, check_counts, counting, counts_of
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.aggregators import class_wise, mean
from fedquilt.pieces.etf import Frame
from fedquilt.pieces.objectives import balanced_softmax, cross_entropy
from fedquilt.pieces.realign import BIAS, WEIGHT, Head, Heads, Personal, Realign, masked, with_head
from fedquilt.records.record import record


class Three(NamedTuple):
    """Scores of the global head, of the fixed frame, and of the local head. Only the frame's move the features."""

    logits: Tensor
    universal: Tensor
    own: Tensor


class FixedHead(nn.Module):
    """Scores by fixed class vectors, without bias."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, f: Tensor) -> Tensor:
        """Class scores."""
        return f @ self.vectors.T


class Framed(nn.Module):
    """A network in two parts with a frame and a second head ``own``; both heads read features without moving them.

    Args:
        build: Makes the network.
        frame: Makes the settings of the frame, from the numbers of classes and features.
        temperature: A learned factor on the frame's scores that starts here; None for none.
        cosine: Whether the frame sees features of length 1.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        frame: Callable[[int, int], Frame],
        temperature: float | None,
        cosine: bool,
    ) -> None:
        super().__init__()
        self.features, self.head = two_parts(build)
        self.own = nn.Linear(self.head.in_features, self.head.out_features)
        self.frame = FixedHead(frame(self.head.out_features, self.head.in_features).build())
        self.temperature = None if temperature is None else nn.Parameter(torch.tensor(temperature))
        self.cosine = cosine

    def forward(self, x: Tensor) -> Three:
        """All three kinds of class scores."""
        f = self.features(x)
        seen, universal = f.detach(), self.frame(F.normalize(f) if self.cosine else f)
        if self.temperature is not None:
            universal = self.temperature * universal
        return Three(self.head(seen), universal, self.own(seen))


def _paced(out: Three, fixed: Fixed) -> Tensor:
    pace = fixed["pace"]
    return out.universal if pace == 1 else pace * out.universal


def universal_loss(out: Three, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Cross-entropy of the frame's scores, times ``fixed["pace"]``."""
    return cross_entropy(_paced(out, fixed), params, fixed, batch)


def universal_balanced(out: Three, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Balanced softmax of the same scores, by the client's own class counts."""
    return balanced_softmax(_paced(out, fixed), params, fixed, batch)


def own_loss(out: Three, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Cross-entropy of the local head's scores."""
    return cross_entropy(out.own, params, fixed, batch)


MASK = "mask"
FrameLoss = Literal["cross_entropy", "balanced"]
LOSSES = {"cross_entropy": (universal_loss, cross_entropy), "balanced": (universal_balanced, balanced_softmax)}
Mode = Literal["universal", "realigned", "plain", "universal_adjusted", "adjusted"]
MODES: tuple[Mode, ...] = get_args(Mode)  # in this order on a tie; the first where nothing can be chosen
WITHOUT_COUNTS = MODES[:3]


@record(name="fedquilt.methods.fedloge:Serving")
class Serving:
    """The server's state, and a download, where the mode is chosen: the shared part, and the mode in use."""

    shared: Params
    serve: str


@record
class Counted:
    """The same where clients send their class counts: also the sums over all clients, zeros before they did."""

    shared: Params
    serve: str
    counts: Tensor


@record(name="fedquilt.methods.fedloge:Holder")
class Holder:
    """A client's state: its local head, which is never sent, and its rows per class (None before its first client
    update)."""

    private: Params
    counts: Tensor | None


@record(name="fedquilt.methods.fedloge:CountedUpload")
class CountedUpload:
    """A change of the shared part with the client's samples per class, for class-wise averaging only."""

    delta: Params
    counts: Tensor


@dataclass(frozen=True, init=False)
class FedLoGe(OnBase):
    """Loss: CE(f S') + CE(sg(f) G' + b_G) + CE(sg(f) L_k' + b_k), sg(f) the features, not moved by these terms.

    So the body is trained through S only, G and L_k on the features as they are before the step: with gradient descent
    the sum is the same as three optimisers in turn. Body and G are averaged, L_k stays home, S never changes. Models in
    use are realigned views (:class:`Realign`), plain networks of the given kind.

    Args:
        base: FedAvg of a network in two parts, features and a linear head.
        frame_loss: Of the frame's scores and the global head's: "cross_entropy" is published; "balanced" is balanced
            softmax with the client's own class counts, which stay at the client. The local head has cross-entropy.
        sparsity: Share of zeros in the frame, from 0 to 0.9.
        norm: Length of the frame's vectors, above 0.
        per_class: Whether every class has the same number of zeros, instead of the frame as a whole.
        frame_by: How the frame's other entries are found: "projection" (fast), or "descent", the published Adam.
        frame_steps: Steps of the descent; 10,000 at 1e-4 is published, 2,000 at 1e-3 do for up to 64 features.
        frame_lr: Learning rate of the descent.
        narrow: What to do when there are more classes than features: "refuse", or "spread" (as far apart as descent
            gets them).
        frame_seed: For the frame and the places of its zeros.
        temperature: A learned factor on the frame's scores that starts here; none if not given.
        cosine: Whether the frame sees features of length 1; give a temperature then.
        warm_norm: If set, the length of the frame's vectors begins here and goes to ``norm`` by equal factors.
        warm_rounds: In how many rounds it goes there.
        kappa: Norm that every row of the global head gets when it is realigned, above 0.
        tau: How far rows are brought there: 1 sets all norms to kappa, 0 changes nothing.
        scale_bias: Whether the bias of a class is multiplied by the same factor as its row.
        personal: Which head a client uses, with the realigned local head: "readme" adds the global head, "code" the
            local one; "sum" is local plus global head, nothing realigned.
        serve: What the global model is: the frame ("universal"), the realigned global head, or the plain one; with
            send_counts also the frame or the plain head adjusted for class shares ("universal_adjusted", "adjusted").
            "auto" takes the one that is most accurate on validation samples, again after each evaluation: those of the
            server if it has any, otherwise the mean over clients. Where nobody holds validation samples it is the
            frame.
        send_counts: Whether every client sends its class counts once, in the first round. The server keeps their sums
            and sends these with every model.
        prior_tau: How far adjusted scores s_c - prior_tau log(share of c) go: 1 wholly, 0 not at all.
        mask: Whether a client never answers a class that it has no training sample of.
        by_class: Average the global head class by class, clients weighing n_k c_kc: their class counts then travel.

    Reference: Xiao et al., FedLoGe: Joint Local and Generic Federated Learning under Long-tailed Data, 2024.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedLoGe(Net.of(models.MLP, features=64, classes=10), sparsity=0.5)
    """

    needs_classes = "gives each class a fixed vector"

    newcomer_head: ClassVar[tuple[str, ...]] = ("head",)

    base: FedAvg
    frame_loss: FrameLoss = "cross_entropy"
    sparsity: float = 0.6
    norm: float = 0.1
    per_class: bool = False
    frame_by: Literal["projection", "descent"] = "projection"
    frame_steps: int = 10_000
    frame_lr: float = 1e-4
    narrow: Literal["refuse", "spread"] = "refuse"
    frame_seed: int = 0
    temperature: float | None = None
    cosine: bool = False
    warm_norm: float | None = None
    warm_rounds: int = 0
    kappa: float = 1.7
    tau: float = 1.0
    scale_bias: bool = False
    personal: Personal = "readme"
    serve: Mode | Literal["auto"] = "auto"
    send_counts: bool = False
    prior_tau: float = 1.0
    mask: bool = False
    by_class: bool = False

    def __post_init__(self) -> None:
        if self.frame_loss not in LOSSES:
            raise InputError(f"frame_loss must be 'cross_entropy' or 'balanced', got {self.frame_loss!r}.")
        if self.serve not in ("auto", *MODES):
            raise InputError(f"serve must be 'auto' or one of {', '.join(MODES)}, got {self.serve!r}.")
        if self.serve not in ("auto", *self.mode_names):
            raise InputError(f"serve = {self.serve!r} needs the clients' class counts: set send_counts = true.")
        self._check_warm_up()
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise InputError(f"The temperature must be finite and start above 0, got {self.temperature}.")
        if self.by_class and self.base.aggregate is not mean:
            raise InputError("by_class is a way to average of its own; leave aggregate out.")
        self.realign  # noqa: B018 - checks its options
        assert self.framed.net.names  # builds it, so that a frame that cannot be is refused at once

    def _check_warm_up(self) -> None:
        warm = 1.0 if self.warm_norm is None else self.warm_norm
        if (self.warm_norm is None) != (self.warm_rounds == 0) or not 0 < warm < math.inf or self.warm_rounds < 0:
            raise InputError(
                "warm_norm (above 0) and warm_rounds (1 or more) go together; "
                f"got {self.warm_norm} and {self.warm_rounds}."
            )

    @property
    def mode_names(self) -> tuple[Mode, ...]:
        """What the global model can be."""
        return MODES if self.send_counts else WITHOUT_COUNTS

    @property
    def plain(self) -> Net:
        """The network as given, which all models in use belong to."""
        return self.base.net

    @cached_property
    def realign(self) -> Realign:
        """How heads are made for use."""
        return Realign(self.kappa, self.tau, self.scale_bias, self.personal, self.prior_tau)

    @cached_property
    def framed(self) -> FedAvg:
        """The base, whose network has a frame and a local head of its own (:class:`Framed`)."""
        frame = partial(
            Frame,
            sparsity=self.sparsity,
            norm=self.norm,
            per_class=self.per_class,
            by=self.frame_by,
            steps=self.frame_steps,
            lr=self.frame_lr,
            narrow=self.narrow,
            seed=self.frame_seed,
        )
        net = rebuilt(self.plain, Framed, frame, self.temperature, self.cosine)
        net = replace(net, frozen=either(net.frozen, under("frame")))
        loss = Objective(net, (*LOSSES[self.frame_loss], own_loss))
        aggregate = class_wise(under("head")) if self.by_class else self.base.aggregate
        return replace(self.base, objective=loss, parts=at_home(under("own")), aggregate=aggregate)

    def pace(self, round: int) -> float:
        """The length of the frame's vectors in this round, as a multiple of ``norm``."""
        if self.warm_norm is None or round >= self.warm_rounds:
            return 1.0
        return float((self.warm_norm / self.norm) ** (1 - round / self.warm_rounds))

    def init_server(self, seed: Seed) -> Server | Serving | Counted:
        """As the base; where the mode is chosen, also which one is in use, and class counts where clients send them."""
        fresh = self.framed.init_server(seed)
        if self.send_counts:
            first = MODES[0] if self.serve == "auto" else self.serve
            return Counted(fresh.shared, first, torch.zeros_like(fresh.shared[BIAS], dtype=torch.int64))
        return Serving(fresh.shared, MODES[0]) if self.serve == "auto" else fresh

    def init_client(self, seed: Seed) -> Holder:
        """A fresh local head."""
        return Holder(self.framed.init_client(seed).private, None)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, and the one on which clients send their class counts."""
        (train,) = self.framed.exchanges()
        exchange = train.training(start=self.start, finish=self.finish)
        exchange = replace(exchange, down=self.down, check=self.check)
        return (exchange, counting()) if self.send_counts else (exchange,)

    def plan(self, state: Server | Serving | Counted, round: int) -> tuple[str, ...]:
        """Clients send counts once: in the first round, or in the next one if nobody's came through."""
        return ("train", "count") if isinstance(state, Counted) and not answered(state) else ("train",)

    def down(self, state: HasShared, client_id: ClientId) -> Download | Serving | Counted:
        """As the base; where the mode is chosen, also its name, for clients that were never asked; and all clients'
        class counts together, where they were sent."""
        return state if isinstance(state, Serving | Counted) else self.framed.down(state, client_id)

    def observe(self, state: HasShared, metrics: Mapping[str, float]) -> HasShared:
        """Hear how accurate each mode is on validation samples, and serve the best."""
        for rows in ("common_valid_accuracy", "global_valid_accuracy"):
            told = {mode: metrics[f"{rows}_{mode}"] for mode in self.mode_names if f"{rows}_{mode}" in metrics}
            if self.serve == "auto" and isinstance(state, Serving | Counted) and told:
                return replace(state, serve=max(told, key=lambda mode: told[mode]))
        return state

    def start(self, download: HasShared, client: Holder, site: Site, context: Context) -> Job:
        """As the base."""
        job = self.framed.start(download, client, site, context)
        job = with_counts(job, site) if self.frame_loss == "balanced" else job
        return replace(job, fixed={**job.fixed, "pace": self.pace(context.round)})

    def finish(
        self, job: Job, trained: Trained, client: Holder, site: Site, context: Context
    ) -> tuple[Holder, HasDelta]:
        """Keep the local head and the counts."""
        counts = counts_of(site.train, len(job.params[BIAS]))
        kept, upload = self.framed.finish(job, trained, client, site, context)
        sent = CountedUpload(upload.delta, counts) if self._by_class else upload
        return replace(kept, counts=counts), sent

    @property
    def _by_class(self) -> bool:
        return isinstance(self.framed.aggregate, class_wise)

    def check(self, state: HasShared, upload: object) -> None:
        """As the base; counts are counts."""
        wanted = CountedUpload if self._by_class else Upload
        if not isinstance(upload, wanted):
            raise InputError(f"upload: expected {wanted.__name__}, got {type(upload).__name__}.")
        self.framed.check(state, upload)
        if isinstance(upload, CountedUpload):
            check_counts(upload.counts, len(state.shared[BIAS]))

    # Models in use

    def heads(self, download: HasShared, client: Holder) -> Heads:
        """Body and heads as trained; ``own`` is None for a client that was never asked."""
        shared = download.shared
        vectors = self.framed.net.full({})["frame.vectors"]
        scaled = vectors * shared["temperature"] if "temperature" in shared else vectors
        body = {n: shared[n] for n in self.plain.names if not under("head")(n)}
        mine = None if client.counts is None else Head(client.private["own.weight"], client.private["own.bias"])
        fixed = Head(scaled, torch.zeros(len(scaled)))
        return Heads(body, Head(shared[WEIGHT], shared[BIAS]), mine, fixed)

    def served(self, held: HasShared) -> str:
        """The mode of the global model, of a state or a download."""
        return str(getattr(held, "serve", MODES[0])) if self.serve == "auto" else self.serve

    def modes(self, held: HasShared) -> dict[str, Params]:
        """What the global model would be in every mode, of a state or a download."""
        heads = self.heads(held, Holder({}, None))
        views = self.realign.views(heads, held.counts if isinstance(held, Counted) else None)
        return {mode: with_head(heads.body, views[mode]) for mode in self.mode_names}

    def global_model(self, state: HasShared) -> Params:
        """The body with the head of the mode in use."""
        return self.modes(state)[self.served(state)]

    def personal_model(self, download: HasShared, client: Holder) -> Params:
        """The body with the client's realigned head; the global model before its first client update."""
        heads = self.heads(download, client)
        if heads.own is None or client.counts is None:
            return self.global_model(download)
        model = with_head(heads.body, self.realign.own(heads.general, heads.own))
        return {**model, MASK: client.counts > 0} if self.mask else model

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """The plain network's scores; those of masked classes are -inf."""
        return masked(logits_of(self.plain(params, batch)), params.get(MASK))
