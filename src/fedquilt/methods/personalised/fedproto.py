"""FedProto: clients share class means of features, not models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.holders import Fixed
from fedquilt.core.net import Net, ScoresAndFeatures
from fedquilt.core.objective import Objective, scores_and_features
from fedquilt.core.params import Params, same_names
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.fedavg import Client, FedAvg, Upload
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.aggregators import Aggregator, mean
from fedquilt.pieces.objectives import weighted_mean
from fedquilt.records.record import record

MEANS, ROWS = "prototype.means", "prototype.rows"  # beside the names of a model, where it is scored
NEVER = -1e4  # the score of a class that nobody has shown


@record(name="fedquilt.methods.fedproto:Prototypes")
class Prototypes:
    """Of each class the mean of its feature vectors, and how many rows stand behind it (0: none known)."""

    classes: Params


@dataclass(frozen=True)
class near_prototypes:
    """lam * mean over rows of |z - prototype of the row's class|^2 / (number of features); 0 where there is none."""

    lam: float

    def __call__(self, out: ScoresAndFeatures, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        means, rows = fixed["prototypes"][MEANS], fixed["prototypes"][ROWS]
        apart = (out.features.flatten(1) - means[batch.y]).square().mean(1) * (rows[batch.y] > 0)
        return self.lam * weighted_mean(apart, batch.weight)


@dataclass(frozen=True, init=False)
class FedProto(OnBase):
    """Local loss: the base's + lam * distance of features to the global prototypes. Models never travel.

    Upload: the mean features of each class over the client's samples, after training. Server, class by class: the mean
    over clients, weighed by rows of that class; a class absent from a round keeps its prototype. A client
    predicts the class of the nearest prototype (and by its head as long as there is none).

    Args:
        base: FedAvg with every name private, and a network in two parts, features and a linear head.
        lam: Weight of the distance, >= 0.
        aggregate: How clients' prototypes of a class are merged; their rows of the class are their samples.

    Reference: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedProto(Net.of(models.MLP, features=64, classes=10), lam=0.5)
    """

    needs_classes = "averages features class by class"

    base: FedAvg
    lam: float = 1.0
    aggregate: Aggregator = mean

    def around(self, objective: Objective | Net, **settings: Any) -> LocalOnly:
        """Local training."""
        return LocalOnly(objective, **settings)

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise InputError(f"FedProto needs lam >= 0, got {self.lam}.")

    def init_server(self, seed: Seed) -> Prototypes:
        """No class known."""
        head = self.base.net.init(seed).get("head.weight")
        if head is None:
            raise InputError("FedProto needs a network whose last part is a linear layer called head.")
        return Prototypes({MEANS: torch.zeros_like(head), ROWS: torch.zeros(len(head))})

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange with other messages."""
        (train,) = self.base.exchanges()
        loss = replace(self.base.loss.plus(near_prototypes(self.lam)), forward=scores_and_features)
        train = train.training(start=self.start, objective=loss, finish=self.finish)
        return (replace(train, down=self.down, check=self.check, up=self.up),)

    def down(self, state: Prototypes, client_id: ClientId) -> Prototypes:
        """The same for everyone."""
        return state

    def start(self, download: Prototypes, client: Client, site: Site, context: Context) -> Job:
        """Go on with one's own model."""
        return Job(params=client.private, fixed={"start": {}, "prototypes": download.classes})

    def finish(
        self, job: Job, trained: Trained, client: Client, site: Site, context: Context
    ) -> tuple[Client, Prototypes]:
        """Keep the model, send the class means of its features."""
        sums = {n: torch.zeros_like(t, dtype=torch.float64) for n, t in job.fixed["prototypes"].items()}
        for batch in site.train.blocks(512):
            with torch.no_grad():
                z = self.base.net.split(trained.params, batch).features.flatten(1).double()
            sums[MEANS].index_add_(0, batch.y, z)
            sums[ROWS].index_add_(0, batch.y, torch.ones(len(z), dtype=torch.float64))
        means = sums[MEANS] / sums[ROWS].clamp(min=1)[:, None]
        return replace(client, private=trained.params), Prototypes({MEANS: means.float(), ROWS: sums[ROWS].float()})

    def check(self, state: Prototypes, upload: Prototypes) -> None:
        """Means and counts of the right shape; counts are not negative."""
        same_names(state.classes, upload.classes, "upload")
        if float(upload.classes[ROWS].min()) < 0:
            raise InputError("upload: a class has a negative number of rows.")

    def up(self, state: Prototypes, replies: Iterable[Reply[Prototypes]], context: Context) -> Prototypes:
        """Average class by class."""
        if self.aggregate is not mean:
            return self._merged(state, list(replies), context)
        means, rows = (torch.zeros_like(state.classes[n], dtype=torch.float64) for n in (MEANS, ROWS))
        for reply in replies:
            count = reply.upload.classes[ROWS].double()
            means += reply.upload.classes[MEANS].double() * count[:, None]
            rows += count
        new = (means / rows.clamp(min=1)[:, None]).float()
        shown = rows > 0
        return Prototypes(
            {
                MEANS: torch.where(shown[:, None], new, state.classes[MEANS]),
                ROWS: torch.where(shown, rows.float(), state.classes[ROWS]),
            }
        )

    def _merged(self, state: Prototypes, replies: Sequence[Reply[Prototypes]], context: Context) -> Prototypes:
        """Class by class, by another aggregator; how each client's prototype differs from the one there is counts."""
        means, rows = state.classes[MEANS].clone(), state.classes[ROWS].clone()
        for label, old in enumerate(state.classes[MEANS]):
            sent = [(r.client, int(r.upload.classes[ROWS][label]), r.upload.classes[MEANS][label]) for r in replies]
            shown = [Reply(client, count, Upload({MEANS: own - old})) for client, count, own in sent if count > 0]
            if shown:
                means[label] = self.aggregate({MEANS: old}, shown, context)[MEANS]
                rows[label] = sum(r.samples for r in shown)
        return Prototypes({MEANS: means, ROWS: rows})

    def global_model(self, state: Prototypes) -> None:
        """There is none."""
        return None

    def personal_model(self, download: Prototypes, client: Client) -> Params:
        """The client's model and the prototypes."""
        return {**client.private, **download.classes}

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """Minus the squared distance to each prototype."""
        out = self.base.net.split(params, batch)
        if MEANS not in params or not bool((params[ROWS] > 0).any()):
            return out.logits
        apart = (out.features.flatten(1)[:, None] - params[MEANS]).square().sum(2)
        return torch.where(params[ROWS] > 0, -apart, torch.full_like(apart, NEVER))
