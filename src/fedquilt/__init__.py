"""fedquilt: learning from clients whose data differ, without moving the data.

Names are imported when they are first used, so ``import fedquilt`` is quick.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from fedquilt.moved import install, moved

if TYPE_CHECKING:
    from fedquilt.analysis.export import export_model as export_model
    from fedquilt.analysis.newcomers import evaluate_newcomers as evaluate_newcomers
    from fedquilt.analysis.predict import predict as predict
    from fedquilt.analysis.run_models import load_model as load_model
    from fedquilt.core.exchange import Context as Context
    from fedquilt.core.exchange import Exchange as Exchange
    from fedquilt.core.exchange import Method as Method
    from fedquilt.core.exchange import Reply as Reply
    from fedquilt.core.exchange import at_random as at_random
    from fedquilt.core.exchange import everyone as everyone
    from fedquilt.core.exchange import fraction as fraction
    from fedquilt.core.net import Net as Net
    from fedquilt.core.objective import Objective as Objective
    from fedquilt.core.own_loop import client_update as client_update
    from fedquilt.core.params import Parts as Parts
    from fedquilt.core.params import everything_but as everything_but
    from fedquilt.core.params import under as under
    from fedquilt.core.seed import Seed as Seed
    from fedquilt.core.train import Job as Job
    from fedquilt.core.train import Train as Train
    from fedquilt.core.train import Trained as Trained
    from fedquilt.data.federation import Federation as Federation
    from fedquilt.errors import FedquiltError as FedquiltError
    from fedquilt.methods import Centralised as Centralised
    from fedquilt.methods import FedAvgNoise as FedAvgNoise
    from fedquilt.methods import FedProx as FedProx
    from fedquilt.methods import LocalOnly as LocalOnly
    from fedquilt.methods.fedavg import FedAvg as FedAvg
    from fedquilt.methods.on_base import OnBase as OnBase
    from fedquilt.pieces.optimizers import SGD as SGD
    from fedquilt.pieces.optimizers import Adam as Adam
    from fedquilt.pieces.optimizers import AdamW as AdamW
    from fedquilt.pieces.robust.attackers import Attackers as Attackers
    from fedquilt.pieces.robust.cohort import CohortChecks as CohortChecks
    from fedquilt.records.record import pack as pack
    from fedquilt.records.record import record as record
    from fedquilt.records.record import unpack as unpack
    from fedquilt.runs.callbacks import Callback as Callback
    from fedquilt.runs.runner import Snapshot as Snapshot
    from fedquilt.runs.runner import run as run
    from fedquilt.studies.results import Results as Results
    from fedquilt.studies.scripts import compare as compare
    from fedquilt.studies.scripts import sweep as sweep
    from fedquilt.testing.methods import check as check

_WHERE = {
    "analysis.export": ("export_model",),
    "analysis.newcomers": ("evaluate_newcomers",),
    "analysis.predict": ("predict",),
    "analysis.run_models": ("load_model",),
    "core.exchange": ("Exchange", "Method", "Reply", "Context", "at_random", "everyone", "fraction"),
    "core.net": ("Net",),
    "core.objective": ("Objective",),
    "core.own_loop": ("client_update",),
    "core.params": ("Parts", "everything_but", "under"),
    "core.seed": ("Seed",),
    "core.train": ("Job", "Train", "Trained"),
    "data.federation": ("Federation",),
    "errors": ("FedquiltError",),
    "methods": ("Centralised", "FedAvgNoise", "FedProx", "LocalOnly"),
    "methods.fedavg": ("FedAvg",),
    "methods.on_base": ("OnBase",),
    "records.record": ("pack", "record", "unpack"),
    "pieces.optimizers": ("SGD", "Adam", "AdamW"),
    "pieces.robust.attackers": ("Attackers",),
    "pieces.robust.cohort": ("CohortChecks",),
    "runs.callbacks": ("Callback",),
    "runs.runner": ("Snapshot", "run"),
    "studies.results": ("Results",),
    "studies.scripts": ("compare", "sweep"),
    "testing.methods": ("check",),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

__version__ = "0.2.0"  # pyproject.toml reads it here
__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Attackers",
    "Callback",
    "Centralised",
    "CohortChecks",
    "Context",
    "Exchange",
    "FedAvg",
    "FedAvgNoise",
    "FedProx",
    "Federation",
    "FedquiltError",
    "Job",
    "LocalOnly",
    "Method",
    "Net",
    "Objective",
    "OnBase",
    "Parts",
    "Reply",
    "Results",
    "Seed",
    "Snapshot",
    "Train",
    "Trained",
    "__version__",
    "at_random",
    "check",
    "client_update",
    "compare",
    "evaluate_newcomers",
    "everyone",
    "everything_but",
    "export_model",
    "fraction",
    "load_model",
    "pack",
    "predict",
    "record",
    "report",
    "run",
    "sweep",
    "under",
    "unpack",
]


install()

_ROOMS = frozenset(room.name for room in pkgutil.iter_modules(__path__))  # one of them, report, can be called


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fedquilt.{name}")
    if name not in _MODULE:
        methods = importlib.import_module("fedquilt.methods")  # of which only some are listed here
        return getattr(methods, name) if name in methods.__all__ else moved(f"fedquilt:{name}")
    return getattr(importlib.import_module(f"fedquilt.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
