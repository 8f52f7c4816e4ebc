"""Published methods, one file each. ``from fedquilt.methods import FedProx`` imports its file when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedquilt.registry import METHODS

if TYPE_CHECKING:
    from fedquilt.methods.apfl import APFL as APFL
    from fedquilt.methods.centralised import Centralised as Centralised
    from fedquilt.methods.cfl import CFL as CFL
    from fedquilt.methods.cgpfl import CGPFL as CGPFL
    from fedquilt.methods.cgpfl import CGPFLMoreau as CGPFLMoreau
    from fedquilt.methods.creff import CReFF as CReFF
    from fedquilt.methods.ditto import Ditto as Ditto
    from fedquilt.methods.fedala import FedALA as FedALA
    from fedquilt.methods.fedamp import FedAMP as FedAMP
    from fedquilt.methods.fedavg import FedAvg as FedAvg
    from fedquilt.methods.fedavg_noise import FedAvgNoise as FedAvgNoise
    from fedquilt.methods.fedbabu import FedBABU as FedBABU
    from fedquilt.methods.fedbn import FedBN as FedBN
    from fedquilt.methods.feddrift import FedDrift as FedDrift
    from fedquilt.methods.feddyn import FedDyn as FedDyn
    from fedquilt.methods.fedetf import FedETF as FedETF
    from fedquilt.methods.fedgroup import FedGroup as FedGroup
    from fedquilt.methods.fedgroup import FedGroupParams as FedGroupParams
    from fedquilt.methods.fedloge import FedLoGe as FedLoGe
    from fedquilt.methods.fednova import FedNova as FedNova
    from fedquilt.methods.fedopt import FedAdagrad as FedAdagrad
    from fedquilt.methods.fedopt import FedAdam as FedAdam
    from fedquilt.methods.fedopt import FedAvgM as FedAvgM
    from fedquilt.methods.fedopt import FedYogi as FedYogi
    from fedquilt.methods.fedper import FedPer as FedPer
    from fedquilt.methods.fedper_finetune import FedPerFineTune as FedPerFineTune
    from fedquilt.methods.fedper_grouped import FedPerGrouped as FedPerGrouped
    from fedquilt.methods.fedproto import FedProto as FedProto
    from fedquilt.methods.fedprox import FedProx as FedProx
    from fedquilt.methods.fedrep import FedRep as FedRep
    from fedquilt.methods.fedrod import FedRoD as FedRoD
    from fedquilt.methods.fedrod_hyper import FedRoDHyper as FedRoDHyper
    from fedquilt.methods.fedsoft import FedSoft as FedSoft
    from fedquilt.methods.fesem import FeSEM as FeSEM
    from fedquilt.methods.finetune import FedAvgFineTune as FedAvgFineTune
    from fedquilt.methods.flhc import FLHC as FLHC
    from fedquilt.methods.hcfl import HCFL as HCFL
    from fedquilt.methods.hgls import HGLS as HGLS
    from fedquilt.methods.ifca import IFCA as IFCA
    from fedquilt.methods.ifca import IFCAGradient as IFCAGradient
    from fedquilt.methods.lcfed import LCFed as LCFed
    from fedquilt.methods.local_only import LocalOnly as LocalOnly
    from fedquilt.methods.localize_stitch import LocalizeStitch as LocalizeStitch
    from fedquilt.methods.localize_stitch import StitchOnce as StitchOnce
    from fedquilt.methods.long_tail import FedAvgBalanced as FedAvgBalanced
    from fedquilt.methods.long_tail import FedLC as FedLC
    from fedquilt.methods.moon import Moon as Moon
    from fedquilt.methods.once import SingleModel as SingleModel
    from fedquilt.methods.pacfl import PACFL as PACFL
    from fedquilt.methods.perfedavg import PerFedAvg as PerFedAvg
    from fedquilt.methods.perfedavg import PerFedAvgHF as PerFedAvgHF
    from fedquilt.methods.pfedme import PFedMe as PFedMe
    from fedquilt.methods.podfcssv import PODFCSSV as PODFCSSV
    from fedquilt.methods.podfcssv import FedMAE as FedMAE
    from fedquilt.methods.podfcssv import MAEAlone as MAEAlone
    from fedquilt.methods.podfcssv import MAEPooled as MAEPooled
    from fedquilt.methods.ratio_loss import RatioLoss as RatioLoss
    from fedquilt.methods.scaffold import Scaffold as Scaffold

_MODULES = {name: module for module, _, name in (entry.where.partition(":") for entry in METHODS.values())}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedquilt.methods' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
