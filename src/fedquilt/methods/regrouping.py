"""What methods with several models share whose clients change clusters from round to round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, Reply, Turn, everyone
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, add, check_change, sub
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.methods.fedavg import Download
from fedquilt.methods.row_losses import mean_loss
from fedquilt.methods.starts import Offer, Starting, Vote


@dataclass(frozen=True, kw_only=True)
class Regrouping(Starting):
    """K models; a client is offered them all and trains the one with the lowest loss on its rows.

    Args:
        base, n_clusters, starts: See :class:`Starting`.
    """

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's trip, and one that shows where a pass from the first model leads."""
        (train,) = self.base.exchanges()
        train = replace(train, down=self.down, up=self.up, check=self.check)
        look = train.training(start=self.start, finish=self.show, epochs=1, steps=None)
        train = train.training(start=self.start, finish=self.finish, objective=self.objective)
        return train, replace(look, name="starts", up=self.place, cohort=everyone)

    @property
    def objective(self) -> Objective:
        """The loss of local training."""
        return self.base.loss

    def down(self, state: Any, client_id: ClientId) -> Any:
        """All models."""
        return Offer(dict(enumerate(state.models)), state.common, state.clusters.labels.get(client_id, -1))

    def whole(self, download: Any, number: int) -> Params:
        """The shared part of one of the models."""
        return {**download.common, **download.models[number]}

    def losses(self, download: Any, client: Any, site: Site) -> dict[int, float]:
        """The loss of every model on the client's training rows, with its own private part."""
        return {
            k: mean_loss(self.base.loss, {**self.whole(download, k), **client.private}, site.train)
            for k in download.models
        }

    def best(self, download: Any, client: Any, site: Site) -> int:
        """The model with the lowest loss; the lowest number on a tie."""
        if len(download.models) == 1:
            return int(next(iter(download.models)))
        losses = self.losses(download, client, site)
        return min(losses, key=lambda k: (losses[k], k))

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """Begin from the best model."""
        k = self.best(download, client, site)
        return replace(self.base.start(Download(self.whole(download, k)), client, site, turn), memo=k)

    def finish(self, job: Job, trained: Trained, client: Any, site: Site, turn: Turn) -> tuple[Any, Any]:
        """As the base; also say which model it was."""
        client, upload = self.base.finish(job, trained, client, site, turn)
        return client, Vote(upload.delta, job.memo)

    def check(self, state: Any, upload: Any) -> None:
        """The number of a model there is, and a change of it."""
        if type(upload.cluster) is not int or not 0 <= upload.cluster < len(state.models):
            raise InputError(f"upload: there is no cluster {upload.cluster!r}, only 0 to {len(state.models) - 1}.")
        check_change({**state.common, **state.models[upload.cluster]}, upload.delta, "upload")

    def up(self, state: Any, replies: Iterable[Reply[Any]], turn: Turn) -> Any:
        """Regroup the clients that were heard, then average within clusters; a cluster without reply stays."""
        heard = list(replies)
        if not heard:
            return state
        labels = self.regroup(state, heard)
        models = tuple(
            self.merge(model, self.group(state, heard, labels, k), len(heard), turn)
            for k, model in enumerate(state.models)
        )
        return replace(state, models=models, clusters=self.found(state, len(models), labels))

    def regroup(self, state: Any, heard: Sequence[Reply[Any]]) -> dict[ClientId, int]:
        """Where each of these clients belongs now: to the model it chose."""
        return {r.client: r.upload.cluster for r in heard}

    def group(
        self, state: Any, heard: Sequence[Reply[Any]], labels: Mapping[ClientId, int], k: int
    ) -> Sequence[Reply[Any]]:
        """The replies of cluster k's members, as changes of its model, also where a client trained another one."""
        return [
            r if r.upload.cluster == k else replace(r, upload=Vote(sub(self.local(state, r), state.models[k]), k))
            for r in heard
            if labels[r.client] == k
        ]

    def local(self, state: Any, reply: Reply[Any]) -> Params:
        """The client's model after training."""
        return add(state.models[reply.upload.cluster], reply.upload.delta)

    def merge(self, model: Params, group: Sequence[Reply[Any]], heard: int, turn: Turn) -> Params:
        """The next model of a cluster from the replies of its members; ``heard`` clients replied in all."""
        return self.base.aggregate(model, group, turn)

    # Models in use

    def global_model(self, state: Any) -> Params | None:
        """There is none."""
        return None

    def personal_model(self, download: Any, client: Any) -> Params:
        """The model of one's cluster; the first for a client that has none yet."""
        mine = download.yours if download.yours in download.models else min(download.models)
        return {**self.whole(download, mine), **client.private}

    def select_model(self, download: Any, client: Any, site: Site) -> Params | None:
        """For a client that was never heard: the model with the lowest loss on its training rows."""
        if download.yours in download.models or len(download.models) == 1:
            return None
        return {**self.whole(download, self.best(download, client, site)), **client.private}

    def newcomer_model(self, download: Any, client: Any, site: Site, turn: Turn) -> Params:
        """The model with the lowest loss on the newcomer's training rows."""
        return {**self.whole(download, self.best(download, client, site)), **client.private}
