"""One row per method. A method is not done before its row is green."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from fedquilt.core.exchange import Method, fraction
from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.data import Federation
from fedquilt.methods.apfl import apfl
from fedquilt.methods.centralised import Centralised
from fedquilt.methods.cfl import CFL
from fedquilt.methods.cgpfl import CGPFL, CGPFLMoreau
from fedquilt.methods.compressed import Compressed
from fedquilt.methods.creff import creff
from fedquilt.methods.ditto import ditto
from fedquilt.methods.fedala import fedala
from fedquilt.methods.fedamp import fedamp
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.fedavg_noise import fedavg_noise
from fedquilt.methods.fedbabu import fedbabu
from fedquilt.methods.fedbn import fedbn
from fedquilt.methods.feddrift import FedDrift
from fedquilt.methods.feddyn import feddyn
from fedquilt.methods.fedetf import fedetf
from fedquilt.methods.fedgroup import FedGroup, FedGroupParams
from fedquilt.methods.fedloge import fedloge
from fedquilt.methods.fednova import fednova
from fedquilt.methods.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedquilt.methods.fedper import fedper
from fedquilt.methods.fedper_finetune import fedper_finetune
from fedquilt.methods.fedper_grouped import FedPerGrouped
from fedquilt.methods.fedproto import fedproto
from fedquilt.methods.fedprox import fedprox
from fedquilt.methods.fedrep import fedrep
from fedquilt.methods.fedrod import fedrod
from fedquilt.methods.fedrod_hyper import fedrod_hyper
from fedquilt.methods.fedsoft import FedSoft
from fedquilt.methods.fesem import FeSEM
from fedquilt.methods.finetune import fedavg_finetune
from fedquilt.methods.flhc import FLHC
from fedquilt.methods.hcfl import HCFL
from fedquilt.methods.hgls_recipe import hgls
from fedquilt.methods.ifca import IFCA, IFCAGradient
from fedquilt.methods.lcfed import LCFed
from fedquilt.methods.local_only import local_only
from fedquilt.methods.localize_stitch import LocalizeStitch, localize_stitch, stitch_once
from fedquilt.methods.long_tail import fedavg_balanced, fedlc
from fedquilt.methods.moon import moon
from fedquilt.methods.once import single_model
from fedquilt.methods.pacfl import PACFL
from fedquilt.methods.perfedavg import perfedavg, perfedavg_hf
from fedquilt.methods.pfedme import pfedme
from fedquilt.methods.podfcssv_recipe import fedmae, mae_alone, mae_pooled, podfcssv
from fedquilt.methods.ratio_loss import ratio_loss
from fedquilt.methods.scaffold import Scaffold
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
    Case("fedprox", fedprox(NET, mu=0.1, **WORK)),
    Case("local-only", local_only(NET, **WORK)),
    Case("centralised", Centralised(objective=NET, **WORK), alone=True),
    Case("fedavg-noise", fedavg_noise(NET, noise=0.05, **WORK)),
    Case("fedavgm", fedavgm(NET, beta=0.5, **WORK)),
    Case("fedadam", fedadam(NET, server_lr=0.1, **WORK)),
    Case("fedadagrad", fedadagrad(NET, server_lr=0.1, **WORK)),
    Case("fedyogi", fedyogi(NET, server_lr=0.1, **WORK)),
    Case("scaffold", Scaffold(NET, **{**WORK, "optimizer": SGD(0.3)})),
    Case("fednova", fednova(NET, **WORK)),
    Case("feddyn", feddyn(NET, alpha=0.1, **WORK)),
    Case("moon", moon(NET, **WORK)),
    Case("fedavg-finetune", fedavg_finetune(NET, **WORK)),
    Case("fedper-shared-start", fedper(NET, **WORK, shared_start=True)),
    Case("fedper", fedper(NET, **WORK)),
    Case("fedrep", fedrep(NET, head_epochs=2, **WORK)),
    Case("fedbabu", fedbabu(NET, **WORK)),
    Case("fedbn", fedbn(Net(partial(Normed, width=16)), **WORK)),
    Case("ditto", ditto(NET, **WORK)),
    Case("apfl", apfl(NET, **WORK)),
    Case("pfedme", pfedme(NET, lam=5.0, inner_lr=0.1, **{**WORK, "optimizer": SGD(0.15)})),
    Case("perfedavg", perfedavg(NET, alpha=0.05, **WORK)),
    Case("perfedavg-hf", perfedavg_hf(NET, alpha=0.05, **{**WORK, "batch_size": 24})),
    Case("fedala", fedala(NET, **WORK)),
    Case("fedamp", fedamp(NET, **WORK)),
    Case("fedproto", fedproto(NET, **WORK)),
    Case("fedrod", fedrod(NET, **WORK)),
    Case("fedrod-hyper", fedrod_hyper(NET, **WORK)),
    Case("fedavg-balanced", fedavg_balanced(NET, **WORK)),
    Case("fedlc", fedlc(NET, tau=0.5, **WORK)),
    Case("fedetf", fedetf(NET, scale=5.0, **WORK)),
    Case("fedloge", fedloge(NET, norm=1.0, **WORK)),
    Case(
        "fedloge-options",
        fedloge(
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
    Case("creff", creff(NET, features=5, match_steps=10, retrain_epochs=20, retrain_lr=0.1, **WORK)),
    Case("ratio-loss", ratio_loss(NET, **WORK)),
    Case("flhc", FLHC(NET, initial_rounds=0, n_clusters=2, recluster_every=2, **WORK)),
    Case(
        "flhc-retest",
        FLHC(NET, initial_rounds=0, retest_every=1, sketch_size=32, sketch_clip=1.0, sketch_noise=0.01, **WORK),
    ),
    Case("hcfl", HCFL(NET, initial_rounds=0, n_clusters=2, mu=0.1, sketch_size=64, **WORK)),
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
    Case("hgls", hgls(NET, **WORK)),
    Case("hgls-hgc", hgls(NET, slopes="hgc", lossless="adaptive", peers=2, **WORK)),
    Case("hgls-mean-head", hgls(NET, mean_head=True, **WORK)),
    Case("hgls-coded", hgls(NET, gradient="last_batch", search_base="local", **WORK)),
    Case("hgls-joint", hgls(NET, base="fedrep", head_epochs=2, search="joint", accept="held_out", **WORK)),
    Case("hgls-scaffold", hgls(NET, base="scaffold", own_only=True, **{**WORK, "optimizer": SGD(0.3)})),
    Case("fedper-finetune", fedper_finetune(NET, tune_epochs=1, **WORK)),
    Case("localize-stitch", localize_stitch(NET, remember=True, **WORK)),
    Case("localize-stitch-sparse", localize_stitch(NET, keep=0.3, error_feedback=True, values="fp16", **WORK)),
    Case("localize-stitch-signs", localize_stitch(NET, mu=1.0, conflicts="elect", per="tensor", **WORK)),
    Case("localize-stitch-silent", localize_stitch(NET, unseen_classes_vote=False, threshold_noise=0.05, **WORK)),
    Case("localize-stitch-trained", localize_stitch(NET, keep=0.5, trained_masks=True, mask_epochs=2, **WORK)),
    Case("localize-stitch-batchnorm", localize_stitch(Net(partial(Normed, width=16)), **{**WORK, "batch_size": 17})),
    Case("localize-stitch-scaffold", LocalizeStitch(base=Scaffold(NET, **{**WORK, "optimizer": SGD(0.3)}))),
    Case("stitch-once", stitch_once(NET, keep=0.5, epochs_first=6, **WORK)),
    Case("single-model", single_model(NET, epochs_first=4, **WORK), alone=True),
    Case("fedavg-stitch", fedavg(aggregate=merging(Stitch(keep=0.7)))),
    Case("fedavg-ties", fedavg(aggregate=merging(Ties(keep=0.7)))),
    Case("fedavg-dare", fedavg(aggregate=merging(Dare(drop=0.3)))),
    Case("codecs-both-ways", Compressed(base=fedavg(), codec=error_feedback(on("delta", top_k(0.3))), download=half())),
    Case("codecs-chained", Compressed(base=fedper(NET, **WORK), codec=chain(power_sgd(8), half()), download=qsgd(8))),
    Case("codecs-batchnorm", Compressed(base=fedbn(Net(partial(Normed, width=16)), **WORK), codec=hgc_rc(64))),
    Case("podfcssv", podfcssv(MAE, center=True, lambda_proto=0.1, **GUESS), guesses=True),
    Case(
        "podfcssv-extended",
        podfcssv(
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
    Case("fedmae", fedmae(MAE, **GUESS), guesses=True),
    Case("mae-alone", mae_alone(MAE, **GUESS), guesses=True),
    Case("mae-pooled", mae_pooled(MAE, **GUESS), alone=True, guesses=True),
]
