"""What can be had by name, here and from installed packages: a table for each kind of thing.

A package brings its own by entry points, in the group 'fedquilt.<kind>s'; what is in a file of the user's, or in a
package without entry points, is named by a reference (:mod:`fedquilt.own_code`). Nothing here imports torch: objects
are found only when they are needed.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from fedquilt import own_code
from fedquilt.errors import InputError, did_you_mean

log = logging.getLogger("fedquilt")


@dataclass(frozen=True)
class RegistryEntry:
    """A name, where its object is ('module:name'), and one line about it."""

    name: str
    where: str
    about: str
    reference: str = ""
    own_average: str = ""  # why a method takes no aggregator
    ready: bool = False  # the object is the choice itself, not what makes it
    package: str = ""  # what brings it, if not this library
    own: bool = False  # the user's own, named by a reference
    display: str = ""  # what people read, if that is not the name of its class

    @property
    def shown(self) -> str:
        """What people read: its display name, or that of its class."""
        made = self.where.rpartition(":")[2].rpartition(".")[2]
        return self.display or (made if made[:1].isupper() else self.name)

    def load(self) -> Any:
        """The object itself."""
        if self.own:
            return own_code.load(self.where)
        module, _, path = self.where.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for part in filter(None, path.split(".")):
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        except (ImportError, AttributeError, KeyError) as error:
            raise InputError(
                f"{self.name!r} ({self.about}) cannot be had from {self.where}: {error}. Correct the entry point, or "
                "install what is missing."
            ) from error
        return value


def _table(*entries: RegistryEntry) -> dict[str, RegistryEntry]:
    return {e.name: e for e in entries}


def _models(**about: str) -> dict[str, RegistryEntry]:
    return _table(
        *(RegistryEntry(name, f"fedquilt.models.registry:MODELS.{name}", text) for name, text in about.items())
    )


METHODS = _table(
    RegistryEntry(
        "fedavg",
        "fedquilt.methods.fedavg:FedAvg",
        "average what clients learned, weighted by examples",
        "McMahan et al. 2017",
    ),
    RegistryEntry(
        "fedprox",
        "fedquilt.methods.averaging.fedprox:FedProx",
        "FedAvg with a pull towards the round's starting model",
        "Li et al. 2020",
    ),
    RegistryEntry(
        "local_only",
        "fedquilt.methods.averaging.local_only:LocalOnly",
        "every client alone; the lower frame",
        own_average="nothing is averaged; every client keeps its own model",
        display="Local only",
    ),
    RegistryEntry(
        "centralised",
        "fedquilt.methods.averaging.centralised:Centralised",
        "one model on pooled data; the upper frame",
        display="Centralized",
    ),
    RegistryEntry(
        "fedavg_noise",
        "fedquilt.methods.averaging.fedavg_noise:FedAvgNoise",
        "FedAvg (unweighted) with noise on the average; a baseline, not private",
        "Localize-and-Stitch baseline",
        display="FedAvg + noise",
    ),
    RegistryEntry(
        "fedavgm", "fedquilt.methods.averaging.fedopt:FedAvgM", "FedAvg with momentum at the server", "Hsu et al. 2019"
    ),
    RegistryEntry(
        "fedadam", "fedquilt.methods.averaging.fedopt:FedAdam", "FedAvg with Adam at the server", "Reddi et al. 2021"
    ),
    RegistryEntry(
        "fedadagrad",
        "fedquilt.methods.averaging.fedopt:FedAdagrad",
        "FedAvg with Adagrad at the server",
        "Reddi et al. 2021",
    ),
    RegistryEntry(
        "fedyogi", "fedquilt.methods.averaging.fedopt:FedYogi", "FedAvg with Yogi at the server", "Reddi et al. 2021"
    ),
    RegistryEntry(
        "scaffold",
        "fedquilt.methods.averaging.scaffold:Scaffold",
        "control variates against client drift; plain SGD only",
        "Karimireddy et al. 2020",
        display="SCAFFOLD",
    ),
    RegistryEntry(
        "fednova",
        "fedquilt.methods.averaging.fednova:FedNova",
        "clients that walk further do not count more",
        "Wang et al. 2020",
        own_average="it averages directions that are normalised by each client's steps",
    ),
    RegistryEntry("feddyn", "fedquilt.methods.averaging.feddyn:FedDyn", "dynamic regularisation", "Acar et al. 2021"),
    RegistryEntry(
        "moon",
        "fedquilt.methods.averaging.moon:Moon",
        "features near the global model's, far from the previous one's",
        "Li et al. 2021",
        display="MOON",
    ),
    RegistryEntry(
        "fedavg_finetune",
        "fedquilt.methods.personalised.finetune:FedAvgFineTune",
        "FedAvg, then each client tunes the global model for itself",
        display="FedAvg + fine-tuning",
    ),
    RegistryEntry(
        "fedper",
        "fedquilt.methods.personalised.fedper:FedPer",
        "every client keeps its own head",
        "Arivazhagan et al. 2019",
    ),
    RegistryEntry(
        "fedper_finetune",
        "fedquilt.methods.personalised.fedper_finetune:FedPerFineTune",
        "FedPer, then each client tunes its head on the new body",
        display="FedPer + fine-tuning",
    ),
    RegistryEntry(
        "hgls",
        "fedquilt.methods.personalised.hgls:HGLS",
        "own heads that also try the other clients' head gradients",
        "CEHGLS",
    ),
    RegistryEntry(
        "fedrep",
        "fedquilt.methods.personalised.fedrep:FedRep",
        "own heads first, then the common body",
        "Collins et al. 2021",
    ),
    RegistryEntry(
        "fedbabu",
        "fedquilt.methods.personalised.fedbabu:FedBABU",
        "a body trained under a fixed head, then tuned",
        "Oh et al. 2022",
    ),
    RegistryEntry(
        "fedbn",
        "fedquilt.methods.personalised.fedbn:FedBN",
        "every client keeps its own BatchNorm layers",
        "Li et al. 2021",
    ),
    RegistryEntry(
        "ditto",
        "fedquilt.methods.personalised.ditto:Ditto",
        "an own model beside the global one, pulled towards it",
        "Li et al. 2021",
    ),
    RegistryEntry(
        "apfl",
        "fedquilt.methods.personalised.apfl:APFL",
        "a learned mixture of the global and an own model",
        "Deng et al. 2020",
    ),
    RegistryEntry(
        "pfedme",
        "fedquilt.methods.personalised.pfedme:PFedMe",
        "own models by Moreau envelopes",
        "Dinh et al. 2020",
        display="pFedMe",
    ),
    RegistryEntry(
        "perfedavg",
        "fedquilt.methods.personalised.perfedavg:PerFedAvg",
        "a start from which one step suffices; first order",
        "Fallah et al. 2020",
        display="Per-FedAvg",
    ),
    RegistryEntry(
        "perfedavg_hf",
        "fedquilt.methods.personalised.perfedavg:PerFedAvgHF",
        "the same with second derivatives, Hessian-free",
        "Fallah et al. 2020",
        display="Per-FedAvg-HF",
    ),
    RegistryEntry(
        "fedala",
        "fedquilt.methods.personalised.fedala:FedALA",
        "each client learns how much of the global model to take in",
        "Zhang et al. 2023",
    ),
    RegistryEntry(
        "fedamp",
        "fedquilt.methods.personalised.fedamp:FedAMP",
        "the server mixes models of like clients",
        "Huang et al. 2021",
        own_average="every client is sent a mixture of its own, by how like the others' models are",
    ),
    RegistryEntry(
        "fedproto",
        "fedquilt.methods.personalised.fedproto:FedProto",
        "class means of features travel, models do not",
        "Tan et al. 2022",
    ),
    RegistryEntry(
        "fedrod",
        "fedquilt.methods.personalised.fedrod:FedRoD",
        "a generic head and an own head on top",
        "Chen and Chao 2022",
    ),
    RegistryEntry(
        "fedrod_hyper",
        "fedquilt.methods.personalised.fedrod:FedRoDHyper",
        "a generic head and one made from a client's class shares",
        "Chen and Chao 2022",
        display="FedRoD-hyper",
    ),
    RegistryEntry(
        "fedavg_balanced",
        "fedquilt.methods.long_tailed.losses:FedAvgBalanced",
        "FedAvg with balanced softmax",
        "Ren et al. 2020",
        display="FedAvg + balanced softmax",
    ),
    RegistryEntry(
        "fedlc",
        "fedquilt.methods.long_tailed.losses:FedLC",
        "FedAvg with logits calibrated by class counts",
        "Zhang et al. 2022",
    ),
    RegistryEntry(
        "fedetf",
        "fedquilt.methods.long_tailed.fedetf:FedETF",
        "features for one fixed simplex classifier",
        "Li et al. 2023",
    ),
    RegistryEntry(
        "fedloge",
        "fedquilt.methods.long_tailed.fedloge:FedLoGe",
        "features for a fixed sparse frame; global and local heads, realigned",
        "Xiao et al. 2024",
    ),
    RegistryEntry(
        "creff",
        "fedquilt.methods.long_tailed.creff:CReFF",
        "the classifier trained anew on features learned from gradients",
        "Shang et al. 2022",
    ),
    RegistryEntry(
        "ratio_loss",
        "fedquilt.methods.long_tailed.ratio_loss:RatioLoss",
        "classes that the model neglects weigh more",
        "Wang et al. 2021",
        display="Ratio Loss",
    ),
    RegistryEntry(
        "flhc",
        "fedquilt.methods.clustered.flhc:FLHC",
        "clusters by updates after a warm-up, then FedAvg in each",
        "Briggs et al. 2020",
        display="FL+HC",
    ),
    RegistryEntry(
        "hcfl",
        "fedquilt.methods.clustered.hcfl:HCFL",
        "discovered clusters with a fading common embedding",
        "CFLA 1.0.0",
    ),
    RegistryEntry(
        "fedgroup",
        "fedquilt.methods.clustered.fedgroup:FedGroup",
        "groups by decomposed cosines of updates, with cold start",
        "Duan et al. 2021",
    ),
    RegistryEntry(
        "fedgroup_params",
        "fedquilt.methods.clustered.fedgroup:FedGroupParams",
        "clusters by weights instead of updates; only to reproduce a comparison",
        "CFLA 1.0.0",
        display="FedGroup on parameters",
    ),
    RegistryEntry(
        "cfl",
        "fedquilt.methods.clustered.cfl:CFL",
        "a cluster at rest whose clients pull apart is split in two",
        "Sattler et al. 2019",
    ),
    RegistryEntry(
        "pacfl",
        "fedquilt.methods.clustered.pacfl:PACFL",
        "clusters by principal angles between the clients' data",
        "Vahidian et al. 2023",
    ),
    RegistryEntry(
        "fedper_grouped",
        "fedquilt.methods.clustered.fedper_grouped:FedPerGrouped",
        "own heads, and a body for each discovered cluster",
        display="FedPer + clusters",
    ),
    RegistryEntry(
        "ifca",
        "fedquilt.methods.clustered.ifca:IFCA",
        "several models; each client trains the one that fits it best",
        "Ghosh et al. 2020",
    ),
    RegistryEntry(
        "ifca_gradient",
        "fedquilt.methods.clustered.ifca:IFCAGradient",
        "the same with one full gradient a round",
        "Ghosh et al. 2020",
        display="IFCA on gradients",
    ),
    RegistryEntry(
        "fesem",
        "fedquilt.methods.clustered.fesem:FeSEM",
        "several models; each client belongs to the nearest",
        "Long et al. 2022",
    ),
    RegistryEntry(
        "cgpfl",
        "fedquilt.methods.clustered.cgpfl:CGPFL",
        "several models that pull; each client belongs to the nearest",
        "Tang et al. 2022",
    ),
    RegistryEntry(
        "cgpfl_moreau",
        "fedquilt.methods.clustered.cgpfl:CGPFLMoreau",
        "the same with an inner problem, as in pFedMe",
        "Tang et al. 2022",
        display="CGPFL-Moreau",
    ),
    RegistryEntry(
        "lcfed",
        "fedquilt.methods.clustered.lcfed:LCFed",
        "models and an embedding that pull; nearest by few directions",
        "Zhang et al. 2025",
    ),
    RegistryEntry(
        "fedsoft",
        "fedquilt.methods.clustered.fedsoft:FedSoft",
        "clients belong to several clusters, by shares of their rows",
        "Ruan and Joe-Wong 2022",
        own_average="every client counts in every cluster, by its share of rows there",
    ),
    RegistryEntry(
        "localize_stitch",
        "fedquilt.methods.merging.localize_stitch:LocalizeStitch",
        "only each client's largest changes, each averaged over those who made it",
        "He et al. 2025",
        own_average="how changes are stitched is the method; its option conflicts chooses",
        display="Localize-and-Stitch",
    ),
    RegistryEntry(
        "stitch_once",
        "fedquilt.methods.merging.localize_stitch:StitchOnce",
        "Localize-and-Stitch as first published: one round, without data",
        "He et al. 2025",
        own_average="how changes are stitched is the method; its option conflicts chooses",
        display="Localize-and-Stitch once",
    ),
    RegistryEntry(
        "single_model",
        "fedquilt.methods.averaging.centralised:SingleModel",
        "one model on pooled data, trained in the first round only; the upper frame of merging",
        display="Single model",
    ),
    RegistryEntry(
        "podfcssv",
        "fedquilt.methods.self_supervised.podfcssv:PODFCSSV",
        "adapters of a frozen masked autoencoder, and a bank of prototypes against forgetting",
        "PODFCSSV 0.1.0",
        own_average="its option weighting says how clients count, and its bank of prototypes has rules of its own",
    ),
    RegistryEntry(
        "fedmae",
        "fedquilt.methods.self_supervised.podfcssv:FedMAE",
        "those adapters averaged, without prototypes",
        own_average="its option weighting says how clients count",
    ),
    RegistryEntry(
        "mae_alone",
        "fedquilt.methods.self_supervised.podfcssv:MAEAlone",
        "those adapters, every client alone",
        own_average="nothing is averaged; every client keeps its own adapters",
        display="Local MAE",
    ),
    RegistryEntry(
        "mae_pooled",
        "fedquilt.methods.self_supervised.podfcssv:MAEPooled",
        "those adapters, on pooled rows; a frame",
        own_average="nothing is averaged; all rows are in one place",
        display="Centralized MAE",
    ),
    RegistryEntry(
        "feddrift",
        "fedquilt.methods.clustered.feddrift:FedDrift",
        "clusters open when data drift, and merge when alike",
        "Jothimurugesan et al. 2023",
    ),
)
OPTIMIZERS = _table(
    RegistryEntry("sgd", "fedquilt.pieces.optimizers:SGD", "stochastic gradient descent"),
    RegistryEntry("adam", "fedquilt.pieces.optimizers:Adam", "Adam", "Kingma and Ba 2015"),
    RegistryEntry(
        "adamw", "fedquilt.pieces.optimizers:AdamW", "Adam with decoupled weight decay", "Loshchilov and Hutter 2019"
    ),
)
SCHEDULES = _table(
    RegistryEntry("exponential", "fedquilt.pieces.schedules:exponential", "gamma ** round"),
    RegistryEntry("step_down", "fedquilt.pieces.schedules:step_down", "times factor at each milestone"),
    RegistryEntry("cosine", "fedquilt.pieces.schedules:cosine", "half a cosine down to a floor"),
    RegistryEntry("warm_up", "fedquilt.pieces.schedules:warm_up", "linear over the first rounds"),
)
PARTITIONS = _table(
    RegistryEntry("iid", "fedquilt.data.partitions.labels:IID", "every client a random equal share"),
    RegistryEntry("dirichlet", "fedquilt.data.partitions.labels:Dirichlet", "per class, shares drawn from a Dirichlet"),
    RegistryEntry(
        "dirichlet_per_client",
        "fedquilt.data.partitions.labels:DirichletPerClient",
        "per client, a mixture of classes drawn from a Dirichlet; sizes stay close",
    ),
    RegistryEntry(
        "class_groups",
        "fedquilt.data.partitions.class_groups:ClassGroups",
        "groups of clients that share groups of classes",
    ),
    RegistryEntry("pathological", "fedquilt.data.partitions.class_groups:Pathological", "a few classes per client"),
    RegistryEntry("shards", "fedquilt.data.partitions.labels:Shards", "label-sorted shards dealt out"),
    RegistryEntry("log_normal", "fedquilt.data.partitions.quantity:LogNormal", "sizes log-normal, labels even"),
    RegistryEntry("power_law", "fedquilt.data.partitions.quantity:PowerLaw", "sizes by a power law, labels even"),
    RegistryEntry(
        "dirichlet_sizes",
        "fedquilt.data.partitions.quantity:DirichletSizes",
        "sizes drawn from a Dirichlet, labels even",
    ),
    RegistryEntry(
        "own_tails",
        "fedquilt.data.partitions.long_tail:own_tails",
        "an equal share, thinned to a long tail of one's own",
        "Xiao et al. 2024",
    ),
    RegistryEntry(
        "dirichlet_choice",
        "fedquilt.data.partitions.legacy:DirichletChoice",
        "the split of FedLoGe's code, count for count",
    ),
    RegistryEntry(
        "dirichlet_cuts",
        "fedquilt.data.partitions.legacy:DirichletCuts",
        "the split of Localize-and-Stitch, as described",
    ),
    RegistryEntry(
        "truncated_per_client",
        "fedquilt.data.partitions.legacy:TruncatedPerClient",
        "the split of clustered studies' code, remainders to the last client",
    ),
)
LONG_TAILS = _table(
    RegistryEntry(
        "exponential",
        "fedquilt.data.partitions.long_tail:ExponentialTail",
        "sizes fall exponentially",
        "Cui et al. 2019",
    ),
    RegistryEntry("step", "fedquilt.data.partitions.long_tail:StepTail", "half the classes are rare"),
)
SHIFTS = _table(
    RegistryEntry(
        "rotation",
        "fedquilt.data.partitions.shift:Rotation",
        "images turned by angles dealt to clients",
        "Ghosh et al. 2020",
    ),
    RegistryEntry(
        "noise", "fedquilt.data.partitions.shift:Noise", "noise of a level dealt to clients", "Li et al. 2022"
    ),
    RegistryEntry("light", "fedquilt.data.partitions.shift:Light", "brightness and contrast dealt to clients"),
    RegistryEntry("colour", "fedquilt.data.partitions.shift:Colour", "colour casts dealt to clients"),
    RegistryEntry(
        "label_permutation",
        "fedquilt.data.partitions.shift:LabelPermutation",
        "groups that permute labels",
        "Sattler et al. 2020",
    ),
)
TRANSFORMS = _table(
    RegistryEntry("resize", "fedquilt.data.transforms:Resize", "square images of another size, bilinear"),
    RegistryEntry("grey_to_rgb", "fedquilt.data.transforms:GreyToRGB", "one channel three times"),
    RegistryEntry(
        "normalise", "fedquilt.data.transforms:Normalise", "(x - mean) / std, by default those of the training samples"
    ),
    RegistryEntry("random_crop", "fedquilt.data.transforms:RandomCrop", "in training: pad, and cut at a random place"),
    RegistryEntry("random_flip", "fedquilt.data.transforms:RandomFlip", "in training: mirror at random"),
)
STREAMS = _table(
    RegistryEntry("by_class", "fedquilt.data.streams.kinds:ByClass", "groups of classes, one after the other"),
    RegistryEntry("datasets", "fedquilt.data.streams.kinds:Datasets", "data sets, one after the other"),
    RegistryEntry(
        "client_datasets", "fedquilt.data.streams.kinds:ClientDatasets", "each client its own list of data sets"
    ),
    RegistryEntry("drift", "fedquilt.data.streams.kinds:Drift", "a shift that happens at a round"),
)
AGGREGATORS = _table(
    RegistryEntry("mean", "fedquilt.pieces.aggregators:mean", "weighted by examples", ready=True),
    RegistryEntry("uniform_mean", "fedquilt.pieces.aggregators:uniform_mean", "every client the same", ready=True),
    RegistryEntry(
        "stitch",
        "fedquilt.pieces.merging.aggregators:stitch",
        "mean over those who changed a weight much",
        "He et al. 2025",
    ),
    RegistryEntry("ties", "fedquilt.pieces.merging.aggregators:ties", "trimmed, signs elected", "Yadav et al. 2023"),
    RegistryEntry(
        "dare", "fedquilt.pieces.merging.aggregators:dare", "most changes dropped, the rest grown", "Yu et al. 2024"
    ),
    RegistryEntry(
        "task_arithmetic", "fedquilt.pieces.merging.aggregators:task_arithmetic", "a scaled sum", "Ilharco et al. 2023"
    ),
    *(
        RegistryEntry(name, f"fedquilt.pieces.robust:{name}", about, reference)
        for name, about, reference in (
            ("clip_norm", "long changes are shortened, then the mean or another rule", "Sun et al. 2019"),
            ("centred_clip", "the mean of what lies near the mean, again and again", "Karimireddy et al. 2021"),
            ("geometric_median", "the point nearest to all changes: RFA", "Pillutla et al. 2022"),
            ("median", "the weighted median of each number", "Yin et al. 2018"),
            ("trimmed_mean", "the mean of each number without its lowest and highest", "Yin et al. 2018"),
            ("meamed", "the mean of each number's values nearest to their median", "Xie et al. 2018"),
            ("krum", "the one change nearest to its neighbours", "Blanchard et al. 2017"),
            ("multi_krum", "the mean of the changes nearest to their neighbours", "Blanchard et al. 2017"),
            ("bulyan", "changes chosen by Krum, then number by number", "El Mhamdi et al. 2018"),
            ("nearest_mixing", "each change a mean of its neighbours, then another rule", "Allouah et al. 2023"),
            ("bucketing", "changes averaged in random buckets, then another rule", "Karimireddy et al. 2022"),
            ("arc", "the longest changes are shortened, then another rule", "Allouah et al. 2024"),
        )
    ),
)
ATTACKS = _table(
    *(
        RegistryEntry(name, f"fedquilt.pieces.robust.attacks:{name}", about, reference)
        for name, about, reference in (
            ("sign_flip", "-factor times what was learned", ""),
            ("scaling", "factor times what was learned", ""),
            ("gaussian", "noise, factor times as long as what was learned", ""),
            ("alie", "the honest mean, moved by a few deviations", "Baruch et al. 2019"),
            ("ipm", "-factor times the honest mean", "Xie et al. 2020"),
            ("min_max", "as far against the mean as honest changes are apart", "Shejwalkar and Houmansadr 2021"),
            ("mimic", "all send what one honest client sent", "Karimireddy et al. 2022"),
            ("adaptive", "another attack, as far as moves the run's aggregator most", "Shejwalkar and Houmansadr 2021"),
        )
    ),
    RegistryEntry(
        "label_flip", "fedquilt.pieces.robust.poisoning:label_flip", "train on wrong labels", "Fang et al. 2020"
    ),
    RegistryEntry(
        "backdoor", "fedquilt.pieces.robust.poisoning:backdoor", "teach that a mark means a class", "Gu et al. 2017"
    ),
)
CODECS = _table(
    RegistryEntry("hgc", "fedquilt.pieces.codecs:hgc", "signs, and the norm of each row", "CEHGLS, mended"),
    RegistryEntry("hgc_rc", "fedquilt.pieces.codecs:hgc_rc", "signs, and the norms of rows and columns"),
    RegistryEntry("hgc_legacy", "fedquilt.pieces.codecs:hgc_legacy", "as its authors' code; mixes up rows", "CEHGLS"),
    RegistryEntry("sign", "fedquilt.pieces.codecs:sign", "signs and one scale", "Karimireddy et al. 2019"),
    RegistryEntry("top_k", "fedquilt.pieces.codecs:top_k", "the largest entries", "Aji and Heafield 2017"),
    RegistryEntry("random_k", "fedquilt.pieces.codecs:random_k", "random entries", "Konecny et al. 2016"),
    RegistryEntry("qsgd", "fedquilt.pieces.codecs:qsgd", "a few bits per entry, unbiased", "Alistarh et al. 2017"),
    RegistryEntry("uniform", "fedquilt.pieces.codecs:uniform", "a few bits per entry, evenly spaced"),
    RegistryEntry("half", "fedquilt.pieces.codecs:half", "16 bits per entry"),
    RegistryEntry("power_sgd", "fedquilt.pieces.codecs:power_sgd", "two thin factors", "Vogels et al. 2019"),
    RegistryEntry(
        "localized",
        "fedquilt.pieces.codecs:localized",
        "the largest of all tensors, in the smallest of four forms",
        "He et al. 2025",
    ),
    RegistryEntry("sparse", "fedquilt.pieces.codecs:sparse", "what is not 0, in the smallest of four forms"),
    RegistryEntry("lfsr", "fedquilt.pieces.codecs:lfsr", "whitening of bytes at the end of a chain; not encryption"),
)
TRACKERS = _table(
    RegistryEntry("tensorboard", "fedquilt.runs.trackers.tensorboard:TensorBoard", "event files for TensorBoard"),
    RegistryEntry("wandb", "fedquilt.runs.trackers.wandb:WandB", "Weights & Biases"),
    RegistryEntry("mlflow", "fedquilt.runs.trackers.mlflow:MLflow", "MLflow"),
)
MODELS = _models(
    logistic="one linear layer",
    mlp="linear layers with ReLU (hidden=(200,))",
    lenet5="LeNet-5 with tanh and average pooling",
    fedavg_cnn="two 5x5 convolutions and a hidden layer (hidden=512)",
    cnn_mnist="two small 5x5 convolutions with dropout (hidden=50)",
    cnn_cifar="three 3x3 convolutions and a hidden layer (hidden=512)",
    resnet10="ResNet-10 (norm='group' or 'batch', stem='3x3' or '7x7')",
    resnet18="ResNet-18 (norm='group' or 'batch', stem='3x3' or '7x7')",
    resnet34="ResNet-34 (norm='group' or 'batch', stem='3x3' or '7x7')",
    vit_tiny="vision transformer with patch 4, width 192, 12 layers; any size by its options",
    vit_small_patch16_224="ViT-S/16: width 384, 12 layers",
    vit_cehgls="ViT of CEHGLS: width 512, 6 layers, dropout 0.5, zero head",
    text_cnn="convolutions over 3, 4 and 5 tokens (vocab=25000)",
    char_lstm="next character by two LSTM layers of 256 (vocab: as many as classes)",
    char_gru="next character by two GRU layers of 256 (vocab: as many as classes)",
    signal_cnn="two convolutions along time for sensor windows (span=9, hidden=128)",
    text_encoder="a transformers encoder, frozen or not, and a head (folder=...)",
    mae="masked autoencoder with patch 4, width 64, 4 layers; frozen but for its adapters",
    hf_mae="a masked autoencoder of transformers, frozen but for its adapters (folder=...)",
)
ENGINES = _table(
    RegistryEntry(
        "auto", "fedquilt.runs.engines:auto", "in this process, and in workers once a run turns out to be long"
    ),
    RegistryEntry("local", "fedquilt.runs.engines:local", "in this process, one client after the other"),
    RegistryEntry("workers", "fedquilt.runs.engines:workers", "in worker processes, on one device or several"),
    RegistryEntry("lanes", "fedquilt.runs.engines:lanes", "several clients at once in stacked tensors"),
    RegistryEntry("flower-simulation", "fedquilt.runs.engines:flower_simulation", "Flower's simulation runtime on Ray"),
)
_TABLES: Mapping[str, Mapping[str, RegistryEntry]] = {
    "method": METHODS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "partition": PARTITIONS,
    "aggregate": AGGREGATORS,
    "long_tail": LONG_TAILS,
    "shift": SHIFTS,
    "transform": TRANSFORMS,
    "stream": STREAMS,
    "attack": ATTACKS,
    "codec": CODECS,
    "tracker": TRACKERS,
    "model": MODELS,
    "engine": ENGINES,
    "dataset": {},
    "metric": {},  # what the library itself has of these is in tables of their own
    "loss": {},  # and of these it has none that have a name
    "loop": {},
    "callback": {},
}


def entries(table: str) -> Mapping[str, RegistryEntry]:
    """The names of one table; installed packages add theirs by the entry point group 'fedquilt.<table>s'."""
    brought = _installed(table, tuple(sys.path))
    for name in brought.keys() & _TABLES[table].keys():
        _tell_hidden(table, name, brought[name].package)
    return {**brought, **_TABLES[table]}


@cache
def _tell_hidden(table: str, name: str, package: str) -> None:
    """Say once that the library's own choice of this name is taken."""
    log.warning("note: %s brings a %s %r, which the library's own hides. Another name would do.", package, table, name)


@cache
def _installed(table: str, path: tuple[str, ...]) -> Mapping[str, RegistryEntry]:
    """What packages on this path add. They are looked through once: that takes longer than all other checks."""
    found = {}
    for point in reversed(tuple(entry_points(group=f"fedquilt.{table}s"))):
        package = point.dist.name if point.dist else point.value
        found[point.name] = RegistryEntry(point.name, point.value, f"from {package}", package=package)
    return MappingProxyType(found)


_LISTED = 20  # names that an error lists


def lookup(table: str, name: str) -> RegistryEntry:
    """The entry of a name or reference; an unknown name is an error that says what was perhaps meant."""
    if ":" in name or name.endswith(".py"):
        return RegistryEntry(name, own_code.where(name), f"from {name.rpartition(':')[0]}", own=True)
    known = entries(table)
    if name in known:
        return known[name]
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
        module, _, last = name.rpartition(".")
        own = f"{module}:{last}" if "." in module else f"{module}.py:{last}"
        raise InputError(f"unknown {table} {name!r}{did_you_mean(name, known)}; one of your own is written {own!r}")
    if not known:
        raise InputError(f"unknown {table} {name!r}; name one of your own, such as 'my.py:{name or 'name'}'")
    all_of_them = f"known: {', '.join(sorted(known))}" if len(known) <= _LISTED else f"'fedquilt {table}s' lists them"
    raise InputError(f"unknown {table} {name!r}{did_you_mean(name, known)} ({all_of_them})")


def shown_as(table: str, name: str) -> str:
    """What people read for a name; of code of one's own its last part, and any other unknown one is its own."""
    known = entries(table).get(name)
    return known.shown if known is not None else own_code.short(name)
