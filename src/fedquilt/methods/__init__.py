"""Published methods, one file each. ``from fedquilt.methods import FedProx`` imports its file when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedquilt.registry import METHODS

if TYPE_CHECKING:
    from fedquilt.methods.averaging.centralised import Centralised as Centralised
    from fedquilt.methods.averaging.centralised import SingleModel as SingleModel
    from fedquilt.methods.averaging.fedavg_noise import FedAvgNoise as FedAvgNoise
    from fedquilt.methods.averaging.feddyn import FedDyn as FedDyn
    from fedquilt.methods.averaging.fednova import FedNova as FedNova
    from fedquilt.methods.averaging.fedopt import FedAdagrad as FedAdagrad
    from fedquilt.methods.averaging.fedopt import FedAdam as FedAdam
    from fedquilt.methods.averaging.fedopt import FedAvgM as FedAvgM
    from fedquilt.methods.averaging.fedopt import FedYogi as FedYogi
    from fedquilt.methods.averaging.fedprox import FedProx as FedProx
    from fedquilt.methods.averaging.local_only import LocalOnly as LocalOnly
    from fedquilt.methods.averaging.moon import Moon as Moon
    from fedquilt.methods.averaging.scaffold import Scaffold as Scaffold
    from fedquilt.methods.clustered.cfl import CFL as CFL
    from fedquilt.methods.clustered.cgpfl import CGPFL as CGPFL
    from fedquilt.methods.clustered.cgpfl import CGPFLMoreau as CGPFLMoreau
    from fedquilt.methods.clustered.feddrift import FedDrift as FedDrift
    from fedquilt.methods.clustered.fedgroup import FedGroup as FedGroup
    from fedquilt.methods.clustered.fedgroup import FedGroupParams as FedGroupParams
    from fedquilt.methods.clustered.fedper_grouped import FedPerGrouped as FedPerGrouped
    from fedquilt.methods.clustered.fedsoft import FedSoft as FedSoft
    from fedquilt.methods.clustered.fesem import FeSEM as FeSEM
    from fedquilt.methods.clustered.flhc import FLHC as FLHC
    from fedquilt.methods.clustered.hcfl import HCFL as HCFL
    from fedquilt.methods.clustered.ifca import IFCA as IFCA
    from fedquilt.methods.clustered.ifca import IFCAGradient as IFCAGradient
    from fedquilt.methods.clustered.lcfed import LCFed as LCFed
    from fedquilt.methods.clustered.pacfl import PACFL as PACFL
    from fedquilt.methods.fedavg import FedAvg as FedAvg
    from fedquilt.methods.long_tailed.creff import CReFF as CReFF
    from fedquilt.methods.long_tailed.fedetf import FedETF as FedETF
    from fedquilt.methods.long_tailed.fedloge import FedLoGe as FedLoGe
    from fedquilt.methods.long_tailed.losses import FedAvgBalanced as FedAvgBalanced
    from fedquilt.methods.long_tailed.losses import FedLC as FedLC
    from fedquilt.methods.long_tailed.ratio_loss import RatioLoss as RatioLoss
    from fedquilt.methods.merging.localize_stitch import LocalizeStitch as LocalizeStitch
    from fedquilt.methods.merging.localize_stitch import StitchOnce as StitchOnce
    from fedquilt.methods.personalised.apfl import APFL as APFL
    from fedquilt.methods.personalised.ditto import Ditto as Ditto
    from fedquilt.methods.personalised.fedala import FedALA as FedALA
    from fedquilt.methods.personalised.fedamp import FedAMP as FedAMP
    from fedquilt.methods.personalised.fedbabu import FedBABU as FedBABU
    from fedquilt.methods.personalised.fedbn import FedBN as FedBN
    from fedquilt.methods.personalised.fedper import FedPer as FedPer
    from fedquilt.methods.personalised.fedper_finetune import FedPerFineTune as FedPerFineTune
    from fedquilt.methods.personalised.fedproto import FedProto as FedProto
    from fedquilt.methods.personalised.fedrep import FedRep as FedRep
    from fedquilt.methods.personalised.fedrod import FedRoD as FedRoD
    from fedquilt.methods.personalised.fedrod import FedRoDHyper as FedRoDHyper
    from fedquilt.methods.personalised.finetune import FedAvgFineTune as FedAvgFineTune
    from fedquilt.methods.personalised.hgls import HGLS as HGLS
    from fedquilt.methods.personalised.perfedavg import PerFedAvg as PerFedAvg
    from fedquilt.methods.personalised.perfedavg import PerFedAvgHF as PerFedAvgHF
    from fedquilt.methods.personalised.pfedme import PFedMe as PFedMe
    from fedquilt.methods.self_supervised.podfcssv import PODFCSSV as PODFCSSV
    from fedquilt.methods.self_supervised.podfcssv import FedMAE as FedMAE
    from fedquilt.methods.self_supervised.podfcssv import MAEAlone as MAEAlone
    from fedquilt.methods.self_supervised.podfcssv import MAEPooled as MAEPooled

_MODULES = {name: module for module, _, name in (entry.where.partition(":") for entry in METHODS.values())}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedquilt.methods' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
