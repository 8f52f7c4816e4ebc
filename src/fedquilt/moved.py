"""Where modules and names of 0.1 are now. The old ones go on working until 0.3, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HOMES = """
core > .: errors
core > core.capture: marks purity reach steps
core > kernels: wide_linear winograd
core > records: compact declared limits record registered
data > data.partitions: class_groups legacy long_tail measures quantity shares shift
data > data.sources: cache catalogue download formats hub known places readers
data > data.streams: clock
data.formats > data.sources.formats: cifar files folders har idx leaf lists pictures svhn text
engines > rounds: beside blame engine log phases rounds scale sender traffic
methods > methods.averaging: centralised fedavg_noise feddyn fednova fedopt fedprox local_only moon scaffold
methods > methods.clustered: by_distance cfl cgpfl feddrift fedgroup fedper_grouped fedsoft fesem flhc grouped hcfl ifca
methods > methods.clustered: lcfed pacfl regrouping row_losses starts
methods > methods.long_tailed: creff fedetf fedloge ratio_loss
methods > methods.merging: localize_stitch votes
methods > methods.personalised: apfl ditto fedala fedamp fedbabu fedbn fedper fedper_finetune fedproto fedrep fedrod
methods > methods.personalised: finetune hgls hgls_records perfedavg pfedme
methods > methods.self_supervised: masked podfcssv podfcssv_records
models > models.masked: autoencoders hf_mae mae masking
models > models.weights: files hub streamed torch_files
runs > .: report terminal watch
runs > analysis: afterwards assign bench continual continual_plots csv_export doctor heads
runs > analysis: merging
runs > analysis: modes newcomers pretrain pretrain_card tails
runs > config: codecs config data described links options settings texts training
runs > metrics: evaluation
runs > results: clusters comparison_plots majority plots statistics tables traffic views
runs > show: cluster_view show
runs > storage: federation_file files finished journal logs mending slots withheld
runs > studies: compare listening player side_by_side
runs.report > report: blocks gather page panels
runs.report.panels > report.panels: clients clusters files settings summary traffic
runs.statistics > results.statistics: beside intervals paired spread targets
runs.sweeping > config: space
runs.sweeping > results: ranking
runs.sweeping > studies: points sweep
runs.watch > watch: board clients find follow page server tail
"""  # from which folder to which: modules that kept their names
_RENAMED = {  # modules that did not
    "data.sources.unpack": "data.sources.places",
    "data.unpack": "data.sources.places",
    "engines.flower.source": "engines.flower.delivery",
    "audit.analytic": "audit.inversion",
    "audit.quality": "audit.attacks",
    "commands.audit": "commands.looking",
    "compat.practical": "compat.play",
    "runs.environment": "runs.outputs",
    "runs.trackers.protocol": "runs.trackers",
    "runs.trackers.told": "runs.trackers",
    "runs.division": "results.plots",
    "runs.tail_plots": "analysis.tails",
    "runs.predict": "analysis.modes",
    "runs.continual_view": "show.models",
    "runs.tail_view": "show.models",
    "runs.pretrain_view": "show.models",
    "runs.report.panels.streams": "report.panels.files",
    "runs.report.panels.phases": "report.panels.traffic",
    "runs.report.panels.curves": "report.panels.clients",
    "runs.columns": "storage.logs",
    "runs.other_links": "runs.virtual_clock",
    "runs.comparison_view": "show.studies",
    "runs.cluster_plots": "show.cluster_view",
    "engines.hearing": "rounds.blame",
    "engines.flower.errand": "engines.flower.jobs",
    "engines.flower.roster": "engines.flower.membership",
    "engines.receiving": "rounds.exchange_run",
    "engines.trip": "rounds.exchange_run",
    "methods.with_slopes": "methods.long_tailed.with_gradients",
    "pieces.class_slopes": "pieces.class_gradients",
    "core.tape": "kernels.captured",
    "engines.slots": "rounds.rounds",
    "methods.anchoring": "methods.self_supervised.podfcssv_records",
    "methods.hgls_recipe": "methods.personalised.hgls",
    "methods.own_heads": "methods.personalised.hgls_records",
    "methods.podfcssv_recipe": "methods.self_supervised.podfcssv",
    "methods.wrapping": "methods.merging.votes",
    "metrics.collapse": "metrics.tails",
    "pieces.clustering.decomposed": "methods.clustered.fedgroup",
    "pieces.clustering.sharing": "methods.clustered.hcfl",
    "pieces.codecs.adaptive": "pieces.codecs.gaps",
    "pieces.codecs.sparse_places": "pieces.codecs.sparse_wire",
    "pieces.codecs.localized": "pieces.codecs.sparse",
    "pieces.merging.pairs": "pieces.merging.informed",
    "pieces.merging.trained": "pieces.merging.marked",
    "pieces.server_optimizers": "methods.averaging.fedopt",
    "runs.check": "testing.methods",
    "runs.ending": "runs.outputs",
    "runs.methods": "config.described",
    "runs.models": "config.described",
    "runs.registry": "registry",
    "runs.served": "runs.evaluator",
    "runs.sweeping": "studies",
    "commands.benching": "commands.catalogues",
    "commands.continual": "commands.models",
    "commands.merging": "commands.models",
    "commands.pretraining": "commands.models",
    "commands.sweeping": "commands.running",
    "commands.tails": "commands.models",
    "compat.folders": "compat.pfllib",
    "core.conv_pool": "kernels.pooling",
    "core.kernels": "kernels.calls",
    "core.pool_first": "kernels.pooling",
    "core.slopes": "kernels",
    "data.client_streams": "data.streams.kinds",
    "data.imports.unpickle": "data.imports.pfllib",
    "data.joining": "data.streams.streams",
    "data.imports.opening": "data.imports",
    "data.known_people": "data.sources.known",
    "data.plugins": "data.sources.sources",
    "data.stream_kinds": "data.streams.kinds",
    "engines.client_side": "rounds.client",
    "engines.feed": "engines.stacked",
    "engines.groups": "engines.workers",
    "methods.fedrod_hyper": "methods.personalised.fedrod",
    "methods.framed": "methods.long_tailed.fedloge",
    "methods.long_tail": "methods.long_tailed.losses",
    "methods.once": "methods.averaging.centralised",
    "metrics.probes": "metrics.continual",
    "models.layouts": "models.weights.start",
    "pieces.clustering.alike": "methods.clustered.feddrift",
    "pieces.clustering.quality": "pieces.clustering.tree",
    "pieces.clustering.sketch": "pieces.clustering.private",
    "pieces.clustering.stability": "pieces.clustering.agglomerative",
    "pieces.codecs.half": "pieces.codecs.quantised",
    "pieces.codecs.sign": "pieces.codecs.quantised",
    "pieces.merging.density": "pieces.merging.trim",
    "runs.checkpoints": "runs.outputs",
    "runs.cluster_log": "runs.outputs",
    "runs.report.panels.federation": "report.panels.settings",
    "runs.report.panels.ledger": "report.panels.traffic",
    "runs.rounds_plot": "results.comparison_plots",
    "runs.set_aside": "config.data",
    "runs.soup": "analysis.merging",
    "runs.statistics.effects": "results.statistics.paired",
    "runs.storage": "storage.folder",
    "runs.sweeping.plot": "results.comparison_plots",
    "runs.sweeping.view": "show.studies",
    "runs.watch.clients": "watch.board",
    "runs.watch.page": "watch.server",
    "runs.watch.view": "show.show",
    "runs.datasets": "show.models",
    "runs.report.panels.sweeps": "report.panels.settings",
    "methods.retest": "methods.clustered.discovery",
    "core.allowance": "core.memory",
    "core.device": "core.tree",
    "pieces.codecs.low_rank": "pieces.codecs.matrices",
}


def _homes() -> Iterator[tuple[str, str, str]]:
    for line in _HOMES.strip().splitlines():
        folders, _, leaves = line.partition(": ")
        old, _, new = folders.partition(" > ")
        yield old, new, leaves


def _new(folder: str, leaf: str) -> str:
    return f"fedquilt.{leaf}" if folder == "." else f"fedquilt.{folder}.{leaf}"


MODULES = {
    **{f"fedquilt.{old}.{leaf}": _new(new, leaf) for old, new, leaves in _homes() for leaf in leaves.split()},
    **{f"fedquilt.{old}": f"fedquilt.{new}" for old, new in _RENAMED.items()},
}
_NAMES = {  # 'module:name' of 0.1, and what it is now
    "fedquilt.core.exchange:OnBase": "fedquilt.methods.on_base:OnBase",
    "fedquilt.engines.log:Visit": "fedquilt.rounds.log:ClientUpdate",
    "fedquilt.engines.rounds:Visit": "fedquilt.rounds.log:ClientUpdate",
    "fedquilt.data:Entry": "fedquilt.data.sources.catalogue:DatasetEntry",
    "fedquilt.methods.fedper_finetune:HeadTuning": "fedquilt.methods.personalised.fedper_finetune:FedPerFineTune",
    "fedquilt.methods.hcfl:fading": "fedquilt.methods.clustered.hcfl:fading",
    "fedquilt.methods.starts:Starting": "fedquilt.methods.clustered.regrouping:Regrouping",
    "fedquilt.models:Counts": "fedquilt.models.counts:ModelSize",
    "fedquilt.models.registry:Entry": "fedquilt.models.registry:ModelEntry",
    "fedquilt.runs.check:check": "fedquilt.testing.methods:check",
    "fedquilt.runs.registry:Entry": "fedquilt.registry:RegistryEntry",
    "fedquilt.runs.registry:entries": "fedquilt.registry:entries",
    "fedquilt.runs.registry:lookup": "fedquilt.registry:lookup",
    "fedquilt.testing:Report": "fedquilt.testing.checks:CheckReport",
    "fedquilt.testing:Result": "fedquilt.testing.checks:CheckResult",
    "fedquilt:Turn": "fedquilt.core.exchange:Context",
    "fedquilt.core.exchange:Turn": "fedquilt.core.exchange:Context",
    "fedquilt:fedavg_noise": "fedquilt.methods.averaging.fedavg_noise:FedAvgNoise",
    "fedquilt:fedprox": "fedquilt.methods.averaging.fedprox:FedProx",
    "fedquilt:local_only": "fedquilt.methods.averaging.local_only:LocalOnly",
}


@cache
def names() -> Mapping[str, str]:
    """All of them; what was a function called as a method is in recipes is a class."""
    from fedquilt.registry import METHODS  # only where one is asked for: this module is imported first of all

    classes = {
        f"{old}:{e.name}": e.where
        for old, new in MODULES.items()
        for e in METHODS.values()
        if e.where.startswith(f"{new}:")
    }
    return {**classes, **_NAMES}


class Alias(ModuleType):
    """A module of 0.1: it has what its successor has, and what its names are called now."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return moved(f"{self.__name__}:{name}")


class Finder(MetaPathFinder, Loader):
    """Finds modules of 0.1 that are elsewhere now, once Python has found none of that name."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec of an alias."""
        if name not in MODULES:
            return None
        return ModuleSpec(name, self, is_package=any(other.startswith(f"{name}.") for other in MODULES))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The alias; nothing else is imported for it yet."""
        return Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Say where the module is now."""
        _warn(f"the module {module.__name__} is {MODULES[module.__name__]} now")


def moved(name: str) -> Any:
    """What 'module:name' of 0.1 is now; a name that was never there is an AttributeError."""
    module, _, leaf = name.partition(":")
    if now := (names() if module in MODULES else _NAMES).get(name):
        _warn(f"{leaf} of {module} is {now.replace(':', '.')} now")
        module, _, leaf = now.partition(":")
    elif module in MODULES:
        module = MODULES[module]
    else:
        raise AttributeError(f"module {module!r} has no attribute {leaf!r}")
    return getattr(importlib.import_module(module), leaf)


def renamed(old: str, new: str) -> Any:
    """An attribute of 0.1 that is called otherwise now: ``examples = renamed("examples", "samples")`` in its class."""

    def get(self: object) -> Any:
        _warn(f"{type(self).__name__}.{old} is {new} now", 3)
        return getattr(self, new)

    return property(get, doc=f"``{new}``, as 0.1 called it.")


OPTIONS = {("hgls", "slopes"): "gradient_codec"}  # of recipes: the kind and an option as 0.1 called it
FIELDS = {"slope": "gradient", "slopes": "gradients"}  # of messages, on which a codec may be


def current_choice(given: Any) -> Any:
    """A choice of a recipe with its options as they are called now."""
    for (kind, old), new in OPTIONS.items() if isinstance(given, dict) else ():
        if given.get("kind") == kind and old in given:
            _warn(f"{kind}.{old} is {new} now", 3)
            given = {new if name == old else name: value for name, value in given.items()}
    return given


def field_name(name: str) -> str:
    """The field of a message, 'a.b', as it is called now."""
    parts = [FIELDS.get(part, part) for part in name.split(".")]
    if (new := ".".join(parts)) != name:
        _warn(f"the field {name} is {new} now", 3)
    return new


def current(thing: object, new: str, old: str) -> Any:
    """The method ``new`` of what others wrote, or ``old`` where that was written for 0.1; None if it has neither."""
    found = getattr(thing, new, None)
    if found is None and (found := getattr(thing, old, None)) is not None:
        _warn(f"{type(thing).__name__}.{old} should be called {new}", 3)
    return found


def _warn(what: str, level: int = 4) -> None:
    warnings.warn(f"{what}; the old name goes with fedquilt 0.3.", DeprecationWarning, stacklevel=level)


def install() -> None:
    """Let Python find modules of 0.1."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
