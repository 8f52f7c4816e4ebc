"""HGLS: every client keeps its head, and tries the other clients' head gradients on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal, get_args

import torch

from fedquilt.core.exchange import Codec, Context, Exchange, Reply, plain
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Mean, Params, at_home, finite, pick, same_names, under, zeros_like
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import InTurn, Job, Train, Trained
from fedquilt.errors import InputError
from fedquilt.methods.averaging.fedprox import FedProx
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.on_base import OnBase
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.methods.personalised.hgls_records import (
    BIAS,
    WEIGHT,
    GradientTally,
    HeadUpload,
    Invite,
    Others,
    Peer,
    SearchClient,
    SearchServer,
    as_matrix,
    as_params,
    inside,
    is_head,
    rows_of,
    with_own_heads,
)
from fedquilt.pieces.codecs import hgc, hgc_legacy, hgc_rc
from fedquilt.pieces.head_search import FeatureRows, Found, HeadSearch, cosine_step, head_gradient
from fedquilt.records.record import tensors_in

Base = Literal["fedavg", "fedper", "fedprox", "fedrep", "scaffold"]
_CODECS: dict[str, Callable[..., Codec]] = {"hgc": hgc, "hgc_rc": hgc_rc, "hgc_legacy": hgc_legacy}


@dataclass(frozen=True, init=False)
class HGLS(OnBase):
    """Two exchanges a round: train as the base, with a private head; then each client tries all head gradients on its
    head.

    The gradient of client i is the gradient of its cross-entropy along its head, after training. A gradient g_j that
    points the client's own way, <g_j, G_i> > 0, is a candidate; see :class:`fedquilt.pieces.head_search.HeadSearch`.

    Args:
        base: How models are trained and averaged: FedAvg, or a method of one exchange built on it, whose head is made
            private if it is not; or, if a network is given, the name of one.
        mu: Strength of the proximal term, where the base is "fedprox" by name.
        head_epochs: Passes over the head, where the base is "fedrep" by name.
        search: How gradients are tried: "greedy", one after the other; "joint", all together; "off", not at all, which
            is the base alone. See :class:`fedquilt.pieces.head_search.HeadSearch`.
        step: How far a greedy step goes: "cosine", "exact" or "backtracking".
        order: In which order greedy steps are tried: "random", or the most "aligned" first.
        ridge: What moving the head costs in a joint search, >= 0.
        least: A step is taken only if the loss falls by more than this, >= 0.
        gradient: "full": over all of the client's samples at its final model; "last_batch": of the last training step.
        search_base: "aggregated": on the new common body; "local": on the body the client has just trained.
        gradient_codec: How gradients travel, up and down again: as they are ("plain"), or by a codec of this name.
        num_bins: Of that codec: into how many bins norms fall.
        lossless: Of that codec: how its integers are packed.
        codec: How gradients travel, instead of a codec by name.
        peers: How many gradients a client is sent: those closest in direction to its own, its own included; all of
            them if not given.
        max_age: Gradients of clients that were not asked count for so many more rounds.
        own_only: No gradients travel; each client has only its own. A control.
        drop_bias: Gradients are without the bias, whose signs tell which classes a client has.
        accept: Whose loss must fall: that of the training samples ("train"), of a random part of them to which no step
            is fitted ("held_out"), or of the client's validation samples ("valid").
        held_out: How large that part is.
        mean_head: Heads are sent to the server too, and those who never trained begin with their mean. Without it, the
            default, heads never leave, and everyone begins with a random one.
        norms: If a network is given: BatchNorm layers are averaged with the body, statistics too ("average"), or stay
            home ("personal").

    Reference: CEHGLS, the project's README and code.

    Example:
        >>> from fedquilt import Net, models
        >>> method = HGLS(Net.of(models.MLP, features=64, classes=10), base="fedper", search="joint")
    """

    needs_classes = "searches for better rows of a classifier by their cross-entropy"

    base: Annotated[Any, Base] = "fedavg"
    mu: float = 0.01
    head_epochs: int = 10
    gradient: Literal["full", "last_batch"] = "full"
    search_base: Literal["aggregated", "local"] = "aggregated"
    search: Literal["greedy", "joint", "off"] = "greedy"
    step: Literal["cosine", "exact", "backtracking"] = "cosine"
    order: Literal["random", "aligned"] = "random"
    ridge: float = 0.01
    least: float = 0.0
    accept: Literal["train", "held_out", "valid"] = "train"
    held_out: float = 0.25
    peers: int | None = None
    max_age: int = 0
    own_only: bool = False
    drop_bias: bool = False
    mean_head: bool = False
    norms: Literal["average", "personal"] = "average"
    gradient_codec: Literal["plain", "hgc", "hgc_rc", "hgc_legacy"] = "plain"
    num_bins: int = 16
    lossless: Literal["none", "deflate", "gaps", "adaptive", "smallest"] = "none"
    codec: Codec | None = None

    def around(self, objective: Objective | Net, **settings: Any) -> Any:
        """The base of this name."""
        found = net_of(objective).norms if self.norms == "personal" else ()
        home = ("head", *found)
        if self.norms == "personal":
            if not found:
                raise InputError("norms = 'personal' needs a network with BatchNorm; this one has none. Leave it out.")
            settings["parts"] = at_home(under(*home))
        if self.base == "fedprox":
            return FedProx(objective, mu=self.mu, **settings)
        if self.base == "scaffold":
            return Scaffold(objective, **settings)
        if self.base == "fedrep":
            return FedRep(objective, head=home, head_epochs=self.head_epochs, **settings)
        if self.base == "fedper":
            return FedPer(objective, head=home, **settings)
        if self.base == "fedavg":
            return FedAvg(objective, **settings)
        raise InputError(f"base must be one of {', '.join(get_args(Base))}, or a method, got {self.base!r}.")

    def __post_init__(self) -> None:
        choices = {
            "gradient": ("full", "last_batch"),
            "search_base": ("aggregated", "local"),
            "accept": ("train", "held_out", "valid"),
            "gradient_codec": ("plain", *_CODECS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if (self.peers is not None and self.peers < 1) or self.max_age < 0 or not 0 < self.held_out < 1:
            raise InputError(
                "HGLS needs peers >= 1 (or None), max_age >= 0 and held_out between 0 and 1, "
                f"got {self.peers}, {self.max_age}, {self.held_out}."
            )
        if self.search != "off":
            self.tries, self.coding  # noqa: B018 - checks their options
            object.__setattr__(self, "base", self._checked())

    @cached_property
    def tries(self) -> HeadSearch:
        """How gradients are tried."""
        if self.search == "off":
            raise InputError("A search that is off tries nothing.")
        return HeadSearch(self.search, self.step, self.order, self.ridge, self.least)

    @cached_property
    def coding(self) -> Codec:
        """How gradients travel."""
        if self.codec is not None:
            return self.codec
        if self.gradient_codec == "plain":
            return plain
        if self.gradient_codec == "hgc_legacy":
            return hgc_legacy(num_bins=self.num_bins)
        return _CODECS[self.gradient_codec](num_bins=self.num_bins, lossless=self.lossless)

    def _checked(self) -> Any:
        base = with_own_heads(self.base, "HGLS")
        (train,) = base.exchanges()
        works = train.work.works if isinstance(train.work, InTurn) else (train.work,)
        if not all(isinstance(work, Train) for work in works) or not any(work.only(WEIGHT) for work in works):
            raise InputError(f"HGLS needs a base that trains the head locally; {type(base).__name__} does not.")
        return base

    # States

    def init_server(self, seed: Seed) -> Any:
        """No gradients yet; the head of a new client is a fresh one."""
        if self.search == "off":
            return super().init_server(seed)
        head = pick(is_head, self.net.init(seed))
        return SearchServer(self.base.init_server(seed), head, (), {}, (), (), GradientTally())

    def init_client(self, seed: Seed) -> Any:
        """As the base."""
        if self.search == "off":
            return super().init_client(seed)
        return SearchClient(self.base.init_client(seed), {}, None, None)

    def observe(self, state: Any, metrics: Mapping[str, float]) -> Any:
        """As the base; if that changes what it sends, nobody holds it."""
        if self.search == "off":
            return super().observe(state, metrics)
        base = self.base.observe(state.base, metrics)
        return state if base is state.base else replace(state, base=base, holders=())

    # The two exchanges

    @property
    def _train(self) -> Exchange:
        (train,) = self.base.exchanges()
        exchange: Exchange = train
        return exchange

    @property
    def _once(self) -> bool:
        """Whether the body that the search brings need not be sent again. The base's codecs must see what is sent."""
        return self.search_base == "aggregated" and self._train.codec == self._train.download == plain

    def exchanges(self) -> tuple[Exchange, ...]:
        """Train, then search; the same clients."""
        if self.search == "off":
            return super().exchanges()
        train = self._train
        work: Any = train.work
        works: tuple[Train, ...] = work.works if isinstance(work, InTurn) else (work,)
        ours = tuple(
            replace(w, start=partial(self.start, w.start, i == 0), finish=partial(self.finish, w.finish))
            for i, w in enumerate(works)
        )
        first = replace(
            train,
            down=self.down,
            work=InTurn(ours) if isinstance(work, InTurn) else ours[0],
            up=self.up,
            codec=inside(train.codec),
            download=inside(train.download),
            check=self.check,
            uncoded=self.uncoded,
        )
        down = inside(train.download) if self.search_base == "aggregated" else plain
        return first, Exchange(
            "search",
            self.offer,
            self.seek,
            self.note,
            cohort=train.cohort,
            download=down,
            check=self.check_tally,
            upload=GradientTally,
            uncoded=self.uncoded,
        )

    def down(self, state: SearchServer, client_id: ClientId) -> Invite:
        """The base's download, unless the search has brought it; the mean head to those who never trained."""
        base = None if client_id in state.holders else self._train.down(state.base, client_id)
        begins = self.mean_head and state.met and client_id not in state.met
        return Invite(base, state.head if begins else {})

    def start(
        self,
        begin: Callable[..., Job],
        first: bool,
        download: Invite,
        client: SearchClient,
        site: Site,
        context: Context,
    ) -> Job:
        """As the base."""
        mine = self._with_head(client.base, download.head) if first else client.base
        return begin(download.base if download.base is not None else client.kept, mine, site, context)

    def finish(
        self, end: Callable[..., Any], job: Job, trained: Trained, client: SearchClient, site: Site, context: Context
    ) -> tuple[SearchClient, HeadUpload | None]:
        """As the base, and the gradient of the head."""
        base, upload = end(job, trained, client.base, site, context)
        gradient = {**client.gradient, **self._sent_part(trained.gradient)}
        client = replace(client, base=base, gradient=gradient)
        if upload is None:  # the work goes on with another training
            return client, None
        head = pick(is_head, trained.params)
        if self.gradient == "full":
            rows = rows_of(self.net, trained.params, site.train)
            gradient = self._sent_part(as_params(head_gradient(as_matrix(head), rows), head))
        wire, memory = None, client.memory
        if not self.own_only:
            wire, memory = self.coding.encode(gradient, zeros_like(gradient), memory, context.seed.fold("slope"))
        body = {n: t for n, t in trained.params.items() if n not in base.private}
        kept = body if self.search_base == "local" else None
        known = head if self.mean_head else {}
        return replace(client, gradient=gradient, kept=kept, memory=memory), HeadUpload(known, wire, upload)

    def check(self, state: SearchServer, upload: HeadUpload) -> None:
        """Head and gradient fit the network's head; the rest fits the base."""
        same_names(state.head if self.mean_head else {}, upload.head, "upload.head")
        if not self.own_only:
            like = self._sent_part(state.head)
            gradient = self.coding.decode(upload.gradient, like)
            same_names(like, gradient, "upload.gradient")
            if not finite(tensors_in(gradient)):
                raise InputError("upload.gradient holds non-finite numbers.")
        elif upload.gradient is not None:
            raise InputError("upload.gradient should not be there: every client has only its own.")
        self._train.check(state.base, upload.base)

    def check_tally(self, state: SearchServer, upload: GradientTally) -> None:
        """No client was given more gradients than there are (or its own), and it took no others."""
        most = max(1, len(state.peers))
        if not upload.taken <= upload.aligned <= upload.candidates <= most:
            told = f"{upload.candidates} candidates, {upload.aligned} aligned, {upload.taken} taken"
            raise InputError(f"upload: {told} cannot be, of at most {most} gradients.")

    def up(self, state: SearchServer, replies: Iterable[Reply[HeadUpload]], context: Context) -> SearchServer:
        """As the base; the gradients are kept for the search, in an order that tells nothing."""
        fresh: list[Peer] = []
        heads = Mean()

        def inner() -> Iterator[Reply[Any]]:
            for reply in replies:
                fresh.append(Peer(reply.client, context.round, reply.upload.gradient))
                heads.add(reply.upload.head, reply.samples)
                yield replace(reply, upload=reply.upload.base)

        stream = inner()
        base = self._train.up(state.base, stream, context)
        for _ in stream:  # a base that does not listen to all
            pass
        if not fresh:
            return state
        peers = () if self.own_only else self._shuffled([*self._older(state, fresh, context), *fresh], context)
        met = (*state.met, *(p.client for p in fresh if p.client not in state.met))
        head = heads.value() if self.mean_head else state.head
        return SearchServer(base, head, peers, self._nearest(peers, state.head), met, (), GradientTally())

    def _older(self, state: SearchServer, fresh: list[Peer], context: Context) -> list[Peer]:
        """The gradients of earlier rounds that still count."""
        now = {p.client for p in fresh}
        return [p for p in state.peers if p.client not in now and context.round - p.round <= self.max_age]

    def _shuffled(self, peers: list[Peer], context: Context) -> tuple[Peer, ...]:
        order = torch.randperm(len(peers), generator=context.seed.fold("peers").torch())
        return tuple(peers[i] for i in order.tolist())

    def _nearest(self, peers: tuple[Peer, ...], head: Params) -> dict[Any, tuple[int, ...]]:
        """For each client the ``peers`` gradients of largest cosine with its own, as the server knows them."""
        if self.peers is None or not peers:
            return {}
        like = self._sent_part(head)
        known = [as_matrix(self.coding.decode(p.gradient, like)) for p in peers]
        found = {}
        for i, peer in enumerate(peers):
            cosines = [cosine_step(g, known[i]) if i != j else 2.0 for j, g in enumerate(known)]
            best = sorted((j for j, c in enumerate(cosines) if c > 0), key=lambda j: -cosines[j])
            found[peer.client] = tuple(sorted(best[: self.peers]))
        return found

    def offer(self, state: SearchServer, client_id: ClientId) -> Others:
        """The gradients, and the new body to search on."""
        base = self._train.down(state.base, client_id) if self.search_base == "aggregated" else None
        chosen = state.chosen.get(client_id, range(len(state.peers)))
        return Others(base, tuple(state.peers[j].gradient for j in chosen))

    def seek(
        self, download: Others, client: SearchClient, site: Site, context: Context
    ) -> tuple[SearchClient, GradientTally]:
        """Search; only the head changes."""
        after = replace(client, kept=download.base if self._once else None)
        if not client.gradient:  # it did not train this time
            return after, GradientTally()
        if self.own_only:
            gradients = [client.gradient]
        else:
            gradients = [self.coding.decode(wire, zeros_like(client.gradient)) for wire in download.gradients]
        if self.search_base == "aggregated":
            model = self.base.personal_model(download.base, client.base)
        else:
            model = {**client.kept, **client.base.private}
        found = self._found(model, client.gradient, gradients, site, context)
        head = as_params(found.head, pick(is_head, model))
        tally = GradientTally(found.candidates, found.aligned, found.taken)
        return replace(after, base=self._with_head(client.base, head if found.taken else {})), tally

    def _found(self, model: Params, gradient: Params, gradients: list[Params], site: Site, context: Context) -> Found:
        head = pick(is_head, model)
        wide = {n: torch.zeros_like(t) for n, t in head.items()}  # a gradient without bias leaves the bias alone
        reference, *candidates = (as_matrix({**wide, **s}) for s in (gradient, *gradients))
        fit, judge = self._rows(model, site, context)
        return self.tries(as_matrix(head), reference, candidates, fit, judge, context.seed.fold("order"))

    def _rows(self, model: Params, site: Site, context: Context) -> tuple[FeatureRows, FeatureRows]:
        """The rows that steps are fitted to, and those that judge."""
        fit = rows_of(self.net, model, site.train)
        if self.accept == "train":
            return fit, fit
        if self.accept == "valid":
            return fit, rows_of(self.net, model, site.valid)
        order = torch.randperm(len(fit.y), generator=context.seed.fold("held out").torch())
        apart = int(self.held_out * len(order))
        return FeatureRows(*(t[order[apart:]] for t in fit)), FeatureRows(*(t[order[:apart]] for t in fit))

    def note(self, state: SearchServer, replies: Iterable[Reply[GradientTally]], context: Context) -> SearchServer:
        """Who has been brought the new body, and how the search went."""
        heard = list(replies)
        if not heard:
            return state
        sums = [sum(getattr(r.upload, n) for r in heard) for n in ("candidates", "aligned", "taken")]
        return replace(state, holders=tuple(r.client for r in heard) if self._once else (), tally=GradientTally(*sums))

    # Numbers

    def uncoded(self, message: Any) -> Any:
        """A message with its gradients as they were before the codec: of their size, without their numbers."""
        if self.coding == plain:
            return message
        if isinstance(message, HeadUpload) and message.gradient is not None:
            return replace(message, gradient=self._size)
        return (
            replace(message, gradients=(self._size,) * len(message.gradients))
            if isinstance(message, Others)
            else message
        )

    @cached_property
    def _size(self) -> Params:
        head = pick(is_head, self.net.init(Seed(0)))
        return {n: t.to("meta") for n, t in self._sent_part(head).items()}

    def reported(self, state: SearchServer) -> Mapping[str, float]:
        """What the base tells, and of the last search: gradients that clients were given, that pointed their way, and
        that they took."""
        if not isinstance(state, SearchServer):  # the base's, or of a method around this one
            return super().reported(state) if self.search == "off" else {}
        told = {f"search_{n}": getattr(state.tally, n) for n in ("candidates", "aligned", "taken")}
        return {**super().reported(state.base), **told}

    # Models

    def global_model(self, state: Any) -> Params | None:
        """The common body with the mean head, if heads are sent and nothing else is private."""
        if self.search == "off":
            return super().global_model(state)
        whole = {**state.base.shared, **state.head}
        return whole if self.mean_head and whole.keys() >= set(self.net.names) else None

    def personal_model(self, download: Any, client: Any) -> Params:
        """The body with the client's own head."""
        if self.search == "off":
            return super().personal_model(download, client)
        base = download.base if download.base is not None else client.kept
        model: Params = self.base.personal_model(base, self._with_head(client.base, download.head))
        return model

    def _with_head(self, client: Any, head: Params) -> Any:
        return replace(client, private={**client.private, **head}) if head else client

    def _sent_part(self, params: Params) -> Params:
        return {n: params[n] for n in (WEIGHT, *(() if self.drop_bias else (BIAS,))) if n in params}
