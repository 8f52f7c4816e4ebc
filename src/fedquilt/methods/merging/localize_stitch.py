"""Localize-and-Stitch: of each client only its largest changes, and each weight averaged over those who changed it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch

from fedquilt.core.exchange import Codec, Context, Exchange, Reply
from fedquilt.core.params import Names, Params, under
from fedquilt.core.seed import Seed
from fedquilt.core.select import marked
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.merging.votes import (
    Counting,
    MaskedVote,
    Order,
    Stitched,
    aggregating,
    innermost,
    rewired,
    seen_classes,
    without_rows,
)
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.codecs.around import error_feedback as feeding_back
from fedquilt.pieces.codecs.fields import on
from fedquilt.pieces.codecs.sparse import density, localized
from fedquilt.pieces.codecs.sparse_values import Values
from fedquilt.pieces.codecs.sparse_wire import sparse
from fedquilt.pieces.merging.marked import Divide, TrainedMask, stitch_marked
from fedquilt.pieces.merging.standing import Standing
from fedquilt.pieces.merging.stitch import Conflicts, Counted
from fedquilt.pieces.merging.trim import Density


@dataclass(frozen=True, init=False)
class LocalizeStitch(OnBase):
    """A round: train as the base does; send only the changes of size tau_i and more; average each over its senders.

    delta_i = theta_i - theta; tau_i the k-th largest |delta_i| over all tensors, k = max(1, floor(K_t P));
    M_i = [|delta_i| >= tau_i]; theta <- theta + sum_i w_i M_i delta_i / sum_i w_i M_i, unchanged where nobody sent.
    Float statistics (BatchNorm) are averaged plainly, integers stay. K = 1 with w_i = 1 is the unweighted FedAvg.

    Args:
        base: Whose exchange 'train' uploads ``delta``, merged by its ``aggregate``.
        k_init: K_t in the first round, and until the merged model's accuracy is known; in (0, 1].
        mu: Afterwards K_t = 1 - mu * accuracy, by the clients' held-out samples (never test samples); in [0, 1]. 0.035
            gives the densities of the published runs, K from 0.997 to 0.966; 1 really sparsifies.
        k_min: K_t is never less, in (0, 1].
        keep: If set, K_t of every round.
        dense_by: If set, K_t rises evenly from k_init to 1 in so many rounds, instead of following the accuracy. Few
            weights with their whole changes move the model fast at first, and keep it from settling later.
        values: How numbers travel: 'fp32', 'fp16', or 'sign' with a size for each tensor.
        error_feedback: What was not sent is kept at the client and added to its next change; sums are then divided by
            all clients.
        threshold_noise: Jitters tau; not private. See :func:`fedquilt.core.select.jittered`.
        per: One tau over 'all' tensors, or one for each 'tensor'.
        count: What the denominator counts: the 'mask', or 'nonzero' changes inside it.
        conflicts: Where changes have both signs: their 'mean' (in which they cancel), the mean of the side that
            outweighs the other ('elect'), or their 'median'.
        by_samples: w_i are samples instead of 1.
        divide: By the 'votes' for each weight, or by all 'clients' that replied; by votes, with error feedback by
            clients, unless said otherwise.
        remember: Keep sums and votes of the last merge in the state, so that clients can be added to it
            (:meth:`joined`) or taken out (:meth:`left`) without the others.
        unseen_classes_vote: If not, the rows of ``head`` of classes that a client has no rows of are not its to change.
        head: The parts of the network that make up the head.
        trained_masks: Whether masks are trained on a few rows of the client, instead of read off magnitudes.
        mask_shots: Rows of each class that train a mask, at most.
        mask_epochs: Passes over those rows.
        mask_lr: Learning rate of the loss in training a mask.
        mask_l1: And of the penalty for what is kept.

    Reference: He et al., Localize-and-Stitch, 2025; several rounds and K_t are of the project localize-stitch-modified.

    Example:
        >>> from fedquilt import Net, models
        >>> net = Net.of(models.MLP, features=64, classes=10)
        >>> method = LocalizeStitch(net, keep=0.25, error_feedback=True, values="sign")
    """

    base: Any
    k_init: float = 0.95
    mu: float = 0.035
    k_min: float = 0.01
    rounds: ClassVar[int | None] = None  # in which it merges; None for all
    keep: float | None = None
    dense_by: int | None = None
    values: Values = "fp32"
    error_feedback: bool = False
    threshold_noise: float = 0.0
    per: Literal["all", "tensor"] = "all"
    count: Counted = "mask"
    conflicts: Conflicts = "mean"
    by_samples: bool = False
    divide: Divide | None = None
    remember: bool = False
    unseen_classes_vote: bool = True
    head: tuple[str, ...] = ("head",)
    trained_masks: bool = False
    mask_shots: int = 64
    mask_epochs: int = 10
    mask_lr: float = 1e7
    mask_l1: float = 1.0

    def __post_init__(self) -> None:
        if self.trained_masks and (self.error_feedback or self.threshold_noise or self.per != "all"):
            raise InputError(
                "Trained masks choose by the loss: error_feedback, threshold_noise and thresholds per tensor do not "
                "go with them. Leave those out."
            )
        if not self.unseen_classes_vote and self.error_feedback:
            raise InputError(
                "Classes that do not vote owe nothing later: use error_feedback with unseen_classes_vote = true."
            )
        if self.remember and (self.stitch.conflicts != "mean" or self.stitch.divide != "votes"):
            raise InputError("Only a masked mean can be remembered: conflicts = 'mean' and divide = 'votes'.")
        self.density, self.stitch, self.silent, self.masks, self._codec()

    @cached_property
    def density(self) -> Density:
        """K_t."""
        return Density(self.k_init, self.mu, self.k_min, self.keep, self.dense_by)

    @cached_property
    def stitch(self) -> stitch_marked:
        """How what was sent is merged."""
        divide = self.divide or ("clients" if self.error_feedback else "votes")
        return stitch_marked(self.count, self.conflicts, self.by_samples, divide)

    @cached_property
    def masks(self) -> TrainedMask | None:
        """How masks are trained, if they are."""
        if not self.trained_masks:
            return None
        size = innermost(self.base).batch_size
        return TrainedMask(self.mask_shots, self.mask_epochs, size, self.mask_lr, self.mask_l1)

    @cached_property
    def silent(self) -> Names | None:
        """The names of the head, if its rows of classes that a client never saw do not vote."""
        return None if self.unseen_classes_vote else self.base.net.under(*self.head)

    def _weights(self) -> Names:
        return under(*(n for n in self.base.net.trainable))

    def _codec(self) -> Codec:
        if self.masks is not None:
            return sparse(self.values, only=self._weights())
        chosen = localized(None, self.values, only=self._weights(), per=self.per, noise=self.threshold_noise)
        return feeding_back(chosen) if self.error_feedback else chosen

    def init_server(self, seed: Seed) -> Stitched:
        """As the base; nothing is known of its accuracy."""
        state = Stitched if self.dense_by is None else Counting
        return state(self.base.init_server(seed), None)

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchanges; in 'train' changes are localised by the codec and stitched."""
        merging = aggregating(self.base, replace(self.stitch, only=self._weights()))
        exchanges = merging.exchanges()
        if "train" not in [t.name for t in exchanges]:
            raise InputError(f"Localize-and-Stitch needs an exchange 'train', {type(self.base).__name__} has none.")
        return tuple(self._exchange(t) for t in exchanges)

    def plan(self, state: Stitched, round: int) -> tuple[str, ...]:
        """As the base, for as many rounds as there are."""
        names: tuple[str, ...] = self.base.plan(state.inner, round)
        return names if self.rounds is None or round < self.rounds else ()

    def _exchange(self, exchange: Exchange) -> Exchange:
        localises = exchange.name == "train"

        def down(state: Stitched, client_id: ClientId) -> Order:
            return Order(exchange.down(state.inner, client_id), self.density(state.accuracy, merges(state)))

        def up(state: Stitched, replies: Iterable[Reply[Any]], context: Context) -> Stitched:
            if not localises:
                return replace(state, inner=exchange.up(state.inner, replies, context))
            kept = [Standing.of({n: state.shared[n] for n in self._trained(state)})] if self.remember else []
            shares: list[float] = []
            inner = exchange.up(state.inner, self._heard(replies, kept, shares), context)
            heard = kept and any(bool(v.any()) for v in kept[0].votes.values())
            sent = sum(shares) / len(shares) if shares else state.sent
            if shares and isinstance(state, Counting):
                state = replace(state, merges=state.merges + 1)
            return replace(state, inner=inner, standing=kept[0] if heard else state.standing, sent=sent)

        def cohort(state: Stitched, ids: Sequence[ClientId], seed: Seed) -> Sequence[ClientId]:
            return exchange.cohort(state.inner, ids, seed)

        def check(state: Stitched, upload: object) -> None:
            exchange.check(state.inner, self._checked(state, upload) if localises else upload)

        work = rewired(exchange.work, _ordered, self._finishing if localises else None)
        codec = on("inner.delta", self._codec()) if localises else exchange.codec
        return replace(exchange, down=down, work=work, up=up, cohort=cohort, check=check, codec=codec)

    # At the client

    def _finishing(
        self, job: Job, trained: Trained, client: object, upload: Any, site: Site, context: Context, order: Order
    ) -> MaskedVote:
        """The base's upload as a vote: unseen classes silent, or with a trained mask."""
        seen = None
        if self.silent is not None:
            seen = seen_classes(site, upload.delta, self.silent)
            upload = replace(upload, delta=without_rows(upload.delta, self.silent, seen))
        if self.masks is not None:
            weights = {n: upload.delta[n] for n in self.base.net.trainable if n in upload.delta}
            loss = innermost(self.base).loss
            mask = self.masks(
                lambda params, batch: loss(params, job.fixed, batch),
                job.params,
                weights,
                order.keep,
                site.train,
                context.seed.fold("masks"),
            )
            upload = replace(upload, delta={**upload.delta, **marked(weights, mask)})
        return MaskedVote(upload, seen)

    # At the server

    def _trained(self, state: Stitched) -> list[str]:
        return [n for n in self.base.net.trainable if n in state.shared]

    def joined(self, state: Stitched, delta: Params, samples: int = 1) -> Stitched:
        """The state with one more client in the last merge; its change was taken from the same start, and localised."""
        if state.standing is None:
            raise InputError("No merge is remembered: set remember = True, and run a round.")
        return self._moved(state, state.standing.joined(delta, samples if self.stitch.by_samples else 1))

    def left(self, state: Stitched, delta: Params, samples: int = 1) -> Stitched:
        """The state without a client that was in the last merge with this change."""
        if state.standing is None:
            raise InputError("No merge is remembered: set remember = True, and run a round.")
        return self._moved(state, state.standing.left(delta, samples if self.stitch.by_samples else 1))

    def _moved(self, state: Stitched, standing: Standing) -> Stitched:
        inner = replace(state.inner, shared={**state.shared, **standing.weights()})
        return replace(state, inner=inner, standing=standing)

    def _heard(
        self, replies: Iterable[Reply[MaskedVote]], kept: list[Standing], shares: list[float]
    ) -> Iterator[Reply[Any]]:
        for reply in replies:
            upload = reply.upload.inner
            if reply.upload.seen is not None and self.silent is not None:  # a chosen 0 of a silent row is no vote
                upload = replace(upload, delta=without_rows(upload.delta, self.silent, reply.upload.seen))
            shares.append(density(upload.delta, self._weights()))
            if kept:
                kept[0] = kept[0].joined(upload.delta, reply.samples if self.stitch.by_samples else 1)
            yield replace(reply, upload=upload)

    def _checked(self, state: Stitched, vote: object) -> Any:
        if not isinstance(vote, MaskedVote):
            raise InputError("this is no vote of Localize-and-Stitch.")
        if vote.seen is None and self.silent is not None:
            raise InputError("the client does not say which classes vote.")
        if vote.seen is not None:
            rows = next((t.shape[0] for n, t in state.shared.items() if self.silent is not None and self.silent(n)), 0)
            if vote.seen.dtype != torch.bool or vote.seen.shape != (rows,):
                raise InputError(f"the classes that vote should be {rows} truth values.")
        return vote.inner

    def observe(self, state: Stitched, metrics: Mapping[str, float]) -> Stitched:
        """Remember the merged model's accuracy on the server's validation samples or, without any, on the clients'
        held-out samples, every row counting the same."""
        inner = self.base.observe(state.inner, metrics)
        names = ("common_valid_accuracy", "global_valid_accuracy_pooled", "valid_accuracy_pooled")
        found = next((metrics[n] for n in names if n in metrics), state.accuracy)
        return replace(state, inner=inner, accuracy=found)

    def reported(self, state: Stitched) -> Mapping[str, float]:
        """What the base tells; K_t of the round just played, and the share of weights that clients really sent: more
        where changes are equal in size, less where classes or masks are silent."""
        if not isinstance(state, Stitched):  # of a method around this one
            return {}
        sent = {} if state.sent is None else {"stitch_density": state.sent}
        played = max(0, merges(state) - 1)
        return {**super().reported(state.inner), "stitch_keep": self.density(state.accuracy, played), **sent}

    def global_model(self, state: Stitched) -> Params | None:
        """As the base."""
        model: Params | None = self.base.global_model(state.inner)
        return model

    def personal_model(self, download: Order, client: object) -> Params:
        """As the base."""
        model: Params = self.base.personal_model(download.inner, client)
        return model


def merges(state: Stitched) -> int:
    """How many rounds have been merged, where that is counted."""
    return state.merges if isinstance(state, Counting) else 0


def _ordered(download: Order) -> Any:
    return download.inner


@dataclass(frozen=True, init=False)
class StitchOnce(LocalizeStitch):
    """Localize-and-Stitch as first published, without data: K fixed, one round, and no more.

    Args:
        base: Whose exchange 'train' uploads ``delta``, merged by its ``aggregate``.
        keep: K, in (0, 1].

    Reference: He et al., Localize-and-Stitch, 2025.

    Example:
        >>> from fedquilt import Net, models
        >>> method = StitchOnce(Net.of(models.MLP, features=64, classes=10), keep=0.05)
    """

    keep: float | None = 0.05
    rounds: ClassVar[int | None] = 1
