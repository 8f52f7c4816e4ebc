"""One row per method. A method is not done before its row is green."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from fedquilt.core.exchange import Method, fraction
from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.data import Federation
from fedquilt.methods.averaging.centralised import Centralised, SingleModel
from fedquilt.methods.averaging.fedavg_noise import FedAvgNoise
from fedquilt.methods.averaging.feddyn import FedDyn
from fedquilt.methods.averaging.fednova import FedNova
from fedquilt.methods.averaging.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedquilt.methods.averaging.fedprox import FedProx
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.averaging.moon import Moon
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.methods.clustered.cfl import CFL
from fedquilt.methods.clustered.cgpfl import CGPFL, CGPFLMoreau
from fedquilt.methods.clustered.feddrift import FedDrift
from fedquilt.methods.clustered.fedgroup import FedGroup, FedGroupParams
from fedquilt.methods.clustered.fedper_grouped import FedPerGrouped
from fedquilt.methods.clustered.fedsoft import FedSoft
from fedquilt.methods.clustered.fesem import FeSEM
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.methods.clustered.hcfl import HCFL
from fedquilt.methods.clustered.ifca import IFCA, IFCAGradient
from fedquilt.methods.clustered.lcfed import LCFed
from fedquilt.methods.clustered.pacfl import PACFL
from fedquilt.methods.compressed import Compressed
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tailed.creff import CReFF
from fedquilt.methods.long_tailed.fedetf import FedETF
from fedquilt.methods.long_tailed.fedloge import FedLoGe
from fedquilt.methods.long_tailed.losses import FedAvgBalanced, FedLC
from fedquilt.methods.long_tailed.ratio_loss import RatioLoss
from fedquilt.methods.merging.localize_stitch import LocalizeStitch, StitchOnce
from fedquilt.methods.personalised.apfl import APFL
from fedquilt.methods.personalised.ditto import Ditto
from fedquilt.methods.personalised.fedala import FedALA
from fedquilt.methods.personalised.fedamp import FedAMP
from fedquilt.methods.personalised.fedbabu import FedBABU
from fedquilt.methods.personalised.fedbn import FedBN
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.methods.personalised.fedper_finetune import FedPerFineTune
from fedquilt.methods.personalised.fedproto import FedProto
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.methods.personalised.fedrod import FedRoD, FedRoDHyper
from fedquilt.methods.personalised.finetune import FedAvgFineTune
from fedquilt.methods.personalised.hgls import HGLS
from fedquilt.methods.personalised.perfedavg import PerFedAvg, PerFedAvgHF
from fedquilt.methods.personalised.pfedme import PFedMe
from fedquilt.methods.self_supervised.podfcssv import PODFCSSV, FedMAE, MAEAlone, MAEPooled
from fedquilt.models.registry import make
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.codecs import chain, error_feedback, half, hgc_rc, on, power_sgd, qsgd, top_k
from fedquilt.pieces.merging.rule import merging
from fedquilt.pieces.merging.stitch import Stitch
from fedquilt.pieces.merging.ties import Dare, Ties
from fedquilt.pieces.optimizers import SGD, AdamW
from helpers.toy import Normed, digits, first

TOY = digits(clients=4)
NET = Net(make("mlp", (1, 8, 8), 10, hidden=(16,)))
HEAD = Parts(shared=everything_but(under("head")), private=under("head"))
WORK: dict[str, Any] = {"optimizer": SGD(0.1, momentum=0.9), "batch_size": 16, "epochs": 2}
MAE = net_called(
    "mae", (1, 8, 8), 10, patch=2, width=16, depth=2, heads=2, decoder_width=8, decoder_heads=2, bottleneck=4
)
GUESS: dict[str, Any] = {"optimizer": AdamW(1e-2), "batch_size": 32, "epochs": 2}


@dataclass(frozen=True)
class Case:
    """A method with settings under which it learns the digits in two rounds.

    Args:
        alone: The method has one client (pooled data), so that leaving it out leaves nobody.
        guesses: It learns without labels, by guessing hidden patches, and is scored by the loss of its guesses.
    """

    name: str
    method: Method
    federation: Federation = TOY
    alone: bool = False
    guesses: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def captured(self) -> bool:
        """Whether steps are captured; for the others the reason is in ``PLAIN``."""
        return self.name not in PLAIN


PLAIN = {
    **dict.fromkeys(
        ("fedavg-batchnorm", "fedbn", "fesem-batchnorm", "localize-stitch-batchnorm", "codecs-batchnorm"),
        "a pass also changes the statistics of BatchNorm",
    ),
    **dict.fromkeys(
        ("fedetf", "podfcssv", "podfcssv-extended", "fedmae", "mae-alone", "mae-pooled"),
        "the module holds buffers that are not among its values",
    ),
    **dict.fromkeys(("fedproto", "ratio-loss"), "the loss looks values up by labels"),
}


def fedavg(**settings: Any) -> FedAvg:
    """FedAvg on the digits."""
    return FedAvg(**{"objective": NET, **WORK, **settings})


CASES = [
    Case("fedavg", fedavg()),
    Case("fedavg-uniform", fedavg(aggregate=uniform_mean)),
    Case("fedavg-batchnorm", fedavg(objective=Net(partial(Normed, width=16)), batch_size=17)),
    Case("fedavg-private-head", fedavg(parts=HEAD)),
    Case("fedavg-fraction", fedavg(cohort=fraction(0.5))),
    Case("fedprox", FedProx(NET, mu=0.1, **WORK)),
    Case("local-only", LocalOnly(NET, **WORK)),
    Case("centralised", Centralised(objective=NET, **WORK), alone=True),
    Case("fedavg-noise", FedAvgNoise(NET, noise=0.05, **WORK)),
    Case("fedavgm", FedAvgM(NET, beta=0.5, **WORK)),
    Case("fedadam", FedAdam(NET, server_lr=0.1, **WORK)),
    Case("fedadagrad", FedAdagrad(NET, server_lr=0.1, **WORK)),
    Case("fedyogi", FedYogi(NET, server_lr=0.1, **WORK)),
    Case("scaffold", Scaffold(NET, **{**WORK, "optimizer": SGD(0.3)})),
    Case("fednova", FedNova(NET, **WORK)),
    Case("feddyn", FedDyn(NET, alpha=0.1, **WORK)),
    Case("moon", Moon(NET, **WORK)),
    Case("fedavg-finetune", FedAvgFineTune(NET, **WORK)),
    Case("fedper-shared-start", FedPer(NET, **WORK, shared_start=True)),
    Case("fedper", FedPer(NET, **WORK)),
    Case("fedrep", FedRep(NET, head_epochs=2, **WORK)),
    Case("fedbabu", FedBABU(NET, **WORK)),
    Case("fedbn", FedBN(Net(partial(Normed, width=16)), **WORK)),
    Case("ditto", Ditto(NET, **WORK)),
    Case("apfl", APFL(NET, **WORK)),
    Case("pfedme", PFedMe(NET, lam=5.0, inner_lr=0.1, **{**WORK, "optimizer": SGD(0.15)})),
    Case("perfedavg", PerFedAvg(NET, alpha=0.05, **WORK)),
    Case("perfedavg-hf", PerFedAvgHF(NET, alpha=0.05, **{**WORK, "batch_size": 24})),
    Case("fedala", FedALA(NET, **WORK)),
    Case("fedamp", FedAMP(NET, **WORK)),
    Case("fedproto", FedProto(NET, **WORK)),
    Case("fedrod", FedRoD(NET, **WORK)),
    Case("fedrod-hyper", FedRoDHyper(NET, **WORK)),
    Case("fedavg-balanced", FedAvgBalanced(NET, **WORK)),
    Case("fedlc", FedLC(NET, tau=0.5, **WORK)),
    Case("fedetf", FedETF(NET, scale=5.0, **WORK)),
    Case("fedloge", FedLoGe(NET, norm=1.0, **WORK)),
    Case("fedloge-balanced", FedLoGe(NET, norm=1.0, frame_loss="balanced", **WORK)),
    Case("fedloge-adjusted", FedLoGe(NET, norm=1.0, send_counts=True, prior_tau=0.5, **WORK)),
    Case("fedloge-adjusted-only", FedLoGe(NET, norm=1.0, send_counts=True, serve="adjusted", **WORK)),
    Case(
        "fedloge-options",
        FedLoGe(
            NET,
            norm=0.5,
            temperature=4.0,
            cosine=True,
            by_class=True,
            warm_norm=2.0,
            warm_rounds=1,
            per_class=True,
            personal="sum",
            mask=True,
            **WORK,
        ),
    ),
    Case("creff", CReFF(NET, features=5, match_steps=10, retrain_epochs=20, retrain_lr=0.1, **WORK)),
    Case("ratio-loss", RatioLoss(NET, **WORK)),
    Case("flhc", FLHC(NET, initial_rounds=0, n_clusters=2, recluster_every=2, **WORK)),
    Case(
        "flhc-retest",
        FLHC(NET, initial_rounds=0, retest_every=1, sketch_size=32, sketch_clip=1.0, sketch_noise=0.01, **WORK),
    ),
    Case("hcfl", HCFL(NET, initial_rounds=0, n_clusters=2, mu=0.1, sketch_size=64, **WORK)),
    Case("hcfl-halves", HCFL(NET, initial_rounds=1, discover_early=True, mu=0.1, sketch_size=64, **WORK)),
    Case("hcfl-global-start", HCFL(NET, initial_rounds=0, n_clusters=2, mu=0.1, start_at="global", **WORK)),
    Case("fedgroup", FedGroup(NET, n_clusters=2, pretrain_steps=5, group_agg_lr=0.01, mu=0.1, **WORK)),
    Case("fedgroup-cold", FedGroup(NET, n_clusters=1, pretrain_scale=2, pretrain_steps=5, measure="madc", **WORK)),
    Case("fedgroup-params", FedGroupParams(NET, initial_rounds=0, **WORK)),
    Case("cfl", CFL(NET, eps_1=100.0, eps_2=0.01, calm_rounds=1, **WORK)),
    Case("pacfl", PACFL(NET, n_clusters=2, **WORK)),
    Case("fedper-grouped", FedPerGrouped(NET, initial_rounds=0, n_clusters=2, **WORK)),
    Case("ifca", IFCA(NET, n_clusters=2, **WORK)),
    Case("ifca-never-asked", IFCA(NET, n_clusters=2, **WORK, cohort=first(2))),
    Case("ifca-heads", IFCA(NET, n_clusters=2, heads=("head",), **WORK)),
    Case("ifca-updates", IFCA(NET, n_clusters=2, starts="updates", **WORK)),
    Case("ifca-gradient", IFCAGradient(NET, n_clusters=2, starts="updates", **{**WORK, "optimizer": SGD(0.4)})),
    Case("fesem", FeSEM(NET, n_clusters=2, **WORK)),
    Case("fesem-memory", FeSEM(NET, n_clusters=3, memory=True, reseed_after=1, **WORK)),
    Case("fesem-batchnorm", FeSEM(Net(partial(Normed, width=16)), n_clusters=2, **{**WORK, "batch_size": 17})),
    Case("cgpfl", CGPFL(NET, n_clusters=2, mu=0.1, **WORK)),
    Case("cgpfl-moreau", CGPFLMoreau(NET, n_clusters=2, mu=5.0, inner_lr=0.1, **{**WORK, "optimizer": SGD(0.15)})),
    Case("cgpfl-cosine", CGPFL(NET, n_clusters=2, mu=0.1, metric="cosine", starts="seeds", **WORK)),
    Case("lcfed", LCFed(NET, n_clusters=2, mu=0.1, lam=0.1, **WORK)),
    Case("fedsoft", FedSoft(NET, n_clusters=2, **WORK)),
    Case("feddrift", FedDrift(NET, **WORK)),
    Case("hgls", HGLS(NET, **WORK)),
    Case("hgls-hgc", HGLS(NET, gradient_codec="hgc", lossless="adaptive", peers=2, **WORK)),
    Case("hgls-mean-head", HGLS(NET, mean_head=True, **WORK)),
    Case("hgls-coded", HGLS(NET, gradient="last_batch", search_base="local", **WORK)),
    Case("hgls-joint", HGLS(NET, base="fedrep", head_epochs=2, search="joint", accept="held_out", **WORK)),
    Case("hgls-scaffold", HGLS(NET, base="scaffold", own_only=True, **{**WORK, "optimizer": SGD(0.3)})),
    Case("fedper-finetune", FedPerFineTune(NET, tune_epochs=1, **WORK)),
    Case("localize-stitch", LocalizeStitch(NET, remember=True, **WORK)),
    Case("localize-stitch-sparse", LocalizeStitch(NET, keep=0.3, error_feedback=True, values="fp16", **WORK)),
    Case("localize-stitch-signs", LocalizeStitch(NET, mu=1.0, conflicts="elect", per="tensor", **WORK)),
    Case("localize-stitch-rising", LocalizeStitch(NET, k_init=0.25, dense_by=2, **WORK)),
    Case("localize-stitch-silent", LocalizeStitch(NET, unseen_classes_vote=False, threshold_noise=0.05, **WORK)),
    Case("localize-stitch-trained", LocalizeStitch(NET, keep=0.5, trained_masks=True, mask_epochs=2, **WORK)),
    Case("localize-stitch-batchnorm", LocalizeStitch(Net(partial(Normed, width=16)), **{**WORK, "batch_size": 17})),
    Case("localize-stitch-scaffold", LocalizeStitch(base=Scaffold(NET, **{**WORK, "optimizer": SGD(0.3)}))),
    Case("stitch-once", StitchOnce(NET, keep=0.5, epochs_first=6, **WORK)),
    Case("single-model", SingleModel(NET, epochs_first=4, **WORK), alone=True),
    Case("fedavg-stitch", fedavg(aggregate=merging(Stitch(keep=0.7)))),
    Case("fedavg-ties", fedavg(aggregate=merging(Ties(keep=0.7)))),
    Case("fedavg-dare", fedavg(aggregate=merging(Dare(drop=0.3)))),
    Case("codecs-both-ways", Compressed(base=fedavg(), codec=error_feedback(on("delta", top_k(0.3))), download=half())),
    Case("codecs-chained", Compressed(base=FedPer(NET, **WORK), codec=chain(power_sgd(8), half()), download=qsgd(8))),
    Case("codecs-batchnorm", Compressed(base=FedBN(Net(partial(Normed, width=16)), **WORK), codec=hgc_rc(64))),
    Case("podfcssv", PODFCSSV(MAE, center=True, lambda_proto=0.1, **GUESS), guesses=True),
    Case(
        "podfcssv-extended",
        PODFCSSV(
            MAE,
            lambda_proto=0.1,
            center=True,
            weighting="samples",
            server_ema=0.3,
            bootstrap_every=1,
            novelty_size=32,
            novelty_k=3,
            live_prototypes=True,
            max_prototypes=12,
            evict=True,
            merge_by_counts=True,
            min_cluster=2,
            prototype_noise=0.01,
            kmeans_init="++",
            reseed="farthest",
            shuffle=True,
            concatenate_first=True,
            **GUESS,
        ),
        guesses=True,
    ),
    Case("fedmae", FedMAE(MAE, **GUESS), guesses=True),
    Case("mae-alone", MAEAlone(MAE, **GUESS), guesses=True),
    Case("mae-pooled", MAEPooled(MAE, **GUESS), alone=True, guesses=True),
]
