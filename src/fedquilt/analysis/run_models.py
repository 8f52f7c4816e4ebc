"""The models of a run by name, from its folder: global, best, cluster:2, client:7."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.newcomers import LearnedRun, download_of
from fedquilt.config.config import Config
from fedquilt.config.data import federation_of
from fedquilt.core.deployed import deployed_model, first_state
from fedquilt.core.exchange import Method
from fedquilt.core.net import Net, logits_of
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Divided, Site
from fedquilt.errors import InputError, SnapshotError, StorageError, did_you_mean
from fedquilt.own_code import short
from fedquilt.pieces.clustering.result import members
from fedquilt.records.record import unpack
from fedquilt.results.clusters import clusters_of
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import method_of
from fedquilt.runs.inputs import Inputs, inputs_in
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.slots import FolderSlots, entries_of

BEST = "models/best.safetensors"
FEW = 12  # clients that an error names
TRIED = 4  # rows that show whether a network alone answers as its method does


@dataclass(frozen=True)
class RunModel:
    """A model of a run.

    Args:
        name: As it was asked for.
        params: All its tensors.
        round: After how many rounds.
        net: The network that they are of; None where the method has none.
        note: What one should know of it; '' if nothing.
    """

    name: str
    params: Params
    round: int
    net: Net | None
    note: str = ""

    def module(self) -> nn.Module:
        """The network with these values, in evaluation mode."""
        if self.net is None:
            raise InputError(
                f"The model '{self.name}' is not a single network: it has {', '.join(list(self.params)[:5])}."
            )
        return self.net.module(self.params)


@dataclass(frozen=True)
class RunModels:
    """What a run has learned by its newest snapshot. Its data are only looked at where a client chooses its model by
    its own rows."""

    folder: Path
    config: Config
    inputs: Inputs
    learned: LearnedRun
    best: int | None
    slots: FolderSlots

    @classmethod
    def of(cls, folder: str | Path, method: Method | None = None) -> RunModels:
        """From the folder of a run; of one that a script began, perhaps with its own method."""
        place = Path(folder)
        config = config_in(place)
        inputs = inputs_in(place, partial(federation_of, config))
        run = RunFolder(place, states_elsewhere=inputs.elsewhere)
        if method is None and config.script:  # first: its state may be of a class that only the script has
            method = config.script.used_method()
        found = run.newest(config.identity(), inputs.data)
        if found is None:
            raise SnapshotError(_nothing_yet(run))
        run.slots.now = dict(entries_of(found.slots))
        if method is None:
            method = method_of(config, cast(Divided, inputs))
        learned = LearnedRun(method, found.state, found.done, Seed(config.seed))
        return cls(place, config, inputs, learned, found.progress.get("best_round"), run.slots)

    @property
    def method_name(self) -> str:
        """What its method is called."""
        return short(self.config.method.kind)

    @property
    def unfinished(self) -> str:
        """How far the run has come, in words; '' if it is over."""
        if (self.folder / "result.json").is_file():
            return ""
        return (
            f"The run is not over: this is from its snapshot after round {self.learned.done} of {self.config.rounds}."
        )

    # By name

    def model(self, name: str = "global") -> RunModel:
        """The model of this name; see :meth:`names`."""
        with one_thread():
            kind, _, which = name.partition(":")
            makers: dict[str, Callable[[], Params]] = {"global": self._global, "best": self._best}
            if which:
                makers = {"cluster": partial(self.cluster, which), "client": partial(self._client, which)}
            if kind not in makers:
                known = ("global", "best", "cluster:0", "client:0")
                raise InputError(
                    f"There is no model {name!r}{did_you_mean(name, known, end='.')} There are: {self.names()}."
                )
            params, net = makers[kind](), self.net
            done = self.best if kind == "best" and self.best is not None else self.learned.done
            found = RunModel(name, params, done, net if net is None or set(net.names) <= params.keys() else None)
            return RunModel(name, params, done, found.net, self._note(found))

    def names(self) -> str:
        """What there is, in words."""
        clients, found = self.inputs.clients, clusters_of(self.learned.state)
        told = ["global"] if self.learned.method.global_model(self.learned.state) is not None else []
        told += ["best"] if (self.folder / BEST).is_file() else []
        told += [] if found is None else [f"cluster:{k}" for k, group in enumerate(members(found)) if group]
        if not self.inputs.elsewhere:
            told += [f"client:{text_of(c)}" for c in clients[:FEW]]
            told += [f"... ({len(clients)} clients)"] if len(clients) > FEW else []
        return ", ".join(told)

    @property
    def net(self) -> Net | None:
        """The network that models are of: what the method trains, without what it adds for training alone."""
        method: Any = self.learned.method
        return getattr(method, "plain", None) or getattr(method, "net", None)

    def _global(self) -> Params:
        found = self.learned.method.global_model(self.learned.state)
        if found is None:
            raise InputError(f"{self.method_name} has no global model. Available: {self.names()}.")
        return found

    def _best(self) -> Params:
        path = self.folder / BEST
        if not path.is_file():
            raise InputError(f"'{self.folder}' has no best model. Available: {self.names()}.")
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise StorageError(f"'{path}' cannot be read: {error}.") from error

    def _client(self, which: str) -> Params:
        clients = {text_of(c): c for c in reversed(self.inputs.clients)}
        if which not in clients:
            raise InputError(
                f"There is no client {which!r}{did_you_mean(which, clients, end='.')} There are: {self.names()}."
            )
        return self.client(clients[which])

    def client(self, client: ClientId) -> Params:
        """What this client would use now."""
        if self.inputs.elsewhere:
            raise InputError(
                f"The state of client {client!r} is stored at its site, so its model is only available there."
            )
        method = self.learned.method
        return deployed_model(method, self._download(client), self._state(client), partial(self._site, client))

    def cluster(self, which: str | int) -> Params:
        """The model that the members of a cluster have in common."""
        found = clusters_of(self.learned.state)
        if found is None:
            raise InputError(f"This run of {self.method_name} has no clusters. Available: {self.names()}.")
        groups = {str(k): group for k, group in enumerate(members(found)) if group}
        if str(which) not in groups:
            raise InputError(f"There is no cluster {which}. There are: {self.names()}.")
        method, group = self.learned.method, groups[str(which)]
        fresh = first_state(method, self.learned.seed.fold("nobody"), group[0])
        common = method.personal_model(self._download(group[0]), fresh)
        for client in group:
            state = fresh if self.inputs.elsewhere else self._state(client)
            if not _equal(common, method.personal_model(self._download(client), state)):
                return self._drawn_to(int(which), found.k, group)
        return common

    def _drawn_to(self, cluster: int, count: int, group: Sequence[ClientId]) -> Params:
        """The model to which the members of a cluster are drawn, who use models of their own."""
        models = getattr(self.learned.state, "models", ())
        if len(models) == count and self.net and models[cluster].keys() >= set(self.net.names):
            return dict(models[cluster])
        raise InputError(
            f"Cluster {cluster} has no complete model: part of it is personal. Use the model of "
            f"a member: {', '.join(f'client:{text_of(c)}' for c in group[:FEW])}."
        )

    # What a client has

    def _download(self, client: ClientId) -> Any:
        return download_of(self.learned, client)

    def _state(self, client: ClientId) -> Any:
        frame = self.slots.get(client)
        if frame is None:
            return first_state(self.learned.method, self.learned.seed, client)
        return unpack(frame).state

    def _site(self, client: ClientId) -> Site | None:
        federation = federation_of(self.config)
        return federation.site(client, max(self.learned.done - 1, 0)) if client in federation.ids else None

    # Whether a network alone is the model

    def _note(self, found: RunModel) -> str:
        """Says so, if the method answers otherwise than the network alone."""
        method, name = self.learned.method, self.method_name
        if found.net is None:
            return f"a model of {name} is no single network"
        if getattr(method, "reconstructs", False):
            return ""
        rows = self.probe(TRIED)
        with torch.inference_mode():
            asked = method.predict(found.params, Batch({"x": rows}))
            alone = logits_of(found.module()(rows))
        near = 1e-3 if found.net.precision == "float32" else 0.1
        if asked.shape == alone.shape and torch.allclose(asked, alone, rtol=near, atol=near * float(alone.abs().max())):
            return ""
        return f"{name} makes its answers of more than the network's scores; 'fedquilt predict' gives them"

    def probe(self, rows: int) -> Tensor:
        """Rows such as a network takes, drawn at random."""
        generator = Seed(0).fold("probe").torch()
        if self.inputs.dtype.startswith(("int", "uint")):  # ids; the first two are in every vocabulary
            return torch.randint(2, (rows, *self.inputs.shape), generator=generator)
        return torch.randn(rows, *self.inputs.shape, generator=generator)


def text_of(client: ClientId) -> str:
    """A client's id as one writes it in a name."""
    return str(client) if isinstance(client, int | str) else json.dumps(client)


def load_model(folder: str | Path, model: str = "global", *, method: Method | None = None) -> nn.Module:
    """A model of a run as a PyTorch module with its weights, in evaluation mode.

    Args:
        folder: Of the run; of one that is not over, its newest snapshot counts.
        model: 'global', 'best' (the global one of the best round), 'cluster:2' or 'client:7'.
        method: That of the run, where a script began it with a network or method of its own.

    Example:
        >>> load_model("runs/quick-1a2b3c4d", "client:7")(torch.zeros(1, 1, 8, 8)).shape  # doctest: +SKIP
        torch.Size([1, 10])
    """
    run = RunModels.of(folder, method)
    found = run.model(model)
    for note in filter(None, (found.note, run.unfinished)):
        warnings.warn(note, stacklevel=2)
    return found.module()


def _nothing_yet(run: RunFolder) -> str:
    if run.snapshots():
        return f"No snapshot of '{run.path}' can be used: they are damaged, or the run's settings or data were changed."
    return f"'{run.path}' has no snapshot yet. Run it (on): fedquilt resume {run.path}"


def _equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(t is b[n] or torch.equal(t, b[n]) for n, t in a.items())
