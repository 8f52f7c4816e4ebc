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
from dataclasses import dataclass, replace
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
                f"{self.name!r} ({self.about}) cannot be loaded from {self.where}: {error}. Correct the entry "
                "point, or "
                "install what is missing."
            ) from error
        return value


def _table(*entries: RegistryEntry) -> dict[str, RegistryEntry]:
    return {e.name: e for e in entries}


def _in(room: str, *entries: RegistryEntry) -> dict[str, RegistryEntry]:
    """A table of what is in one room: the places of all of them begin so."""
    return _table(*(replace(e, where=room + e.where) for e in entries))


def _models(**about: str) -> dict[str, RegistryEntry]:
    return _in("fedquilt.models.registry:MODELS.", *(RegistryEntry(n, n, text) for n, text in about.items()))


METHODS = _in(
    "fedquilt.methods.",
    RegistryEntry("fedavg", "fedavg:FedAvg", "weighted average of local models", "McMahan et al. 2017"),
    RegistryEntry(
        "fedprox", "averaging.fedprox:FedProx", "FedAvg with a proximal term towards the global model", "Li et al. 2020"
    ),
    RegistryEntry(
        "local_only",
        "averaging.local_only:LocalOnly",
        "local training without communication; lower baseline",
        own_average="nothing is averaged; every client keeps its own model",
        display="Local only",
    ),
    RegistryEntry(
        "centralised",
        "averaging.centralised:Centralised",
        "one model on pooled data; upper baseline",
        display="Centralised",
    ),
    RegistryEntry(
        "fedavg_noise",
        "averaging.fedavg_noise:FedAvgNoise",
        "unweighted FedAvg with noise on the average; not differentially private",
        "Localize-and-Stitch baseline",
        display="FedAvg + noise",
    ),
    RegistryEntry("fedavgm", "averaging.fedopt:FedAvgM", "FedAvg with server momentum", "Hsu et al. 2019"),
    RegistryEntry("fedadam", "averaging.fedopt:FedAdam", "FedAvg with server-side Adam", "Reddi et al. 2021"),
    RegistryEntry("fedadagrad", "averaging.fedopt:FedAdagrad", "FedAvg with server-side Adagrad", "Reddi et al. 2021"),
    RegistryEntry("fedyogi", "averaging.fedopt:FedYogi", "FedAvg with server-side Yogi", "Reddi et al. 2021"),
    RegistryEntry(
        "scaffold",
        "averaging.scaffold:Scaffold",
        "control variates against client drift; plain SGD only",
        "Karimireddy et al. 2020",
        display="SCAFFOLD",
    ),
    RegistryEntry(
        "fednova",
        "averaging.fednova:FedNova",
        "normalised averaging for different numbers of local steps",
        "Wang et al. 2020",
        own_average="it averages directions that are normalised by each client's steps",
    ),
    RegistryEntry("feddyn", "averaging.feddyn:FedDyn", "dynamic regularisation", "Acar et al. 2021"),
    RegistryEntry(
        "moon", "averaging.moon:Moon", "model-contrastive learning of features", "Li et al. 2021", display="MOON"
    ),
    RegistryEntry(
        "fedavg_finetune",
        "personalised.finetune:FedAvgFineTune",
        "FedAvg, then fine-tuning on each client",
        display="FedAvg + fine-tuning",
    ),
    RegistryEntry(
        "fedper",
        "personalised.fedper:FedPer",
        "shared body, personal head, trained together",
        "Arivazhagan et al. 2019",
    ),
    RegistryEntry(
        "fedper_finetune",
        "personalised.fedper_finetune:FedPerFineTune",
        "FedPer, then head tuning on the new body",
        display="FedPer + fine-tuning",
    ),
    RegistryEntry(
        "hgls",
        "personalised.hgls:HGLS",
        "personal heads improved by searching over other clients' head gradients",
        "CEHGLS",
    ),
    RegistryEntry(
        "fedrep",
        "personalised.fedrep:FedRep",
        "personal head trained first, then the shared body",
        "Collins et al. 2021",
    ),
    RegistryEntry(
        "fedbabu", "personalised.fedbabu:FedBABU", "body trained with a fixed head, then fine-tuned", "Oh et al. 2022"
    ),
    RegistryEntry("fedbn", "personalised.fedbn:FedBN", "personal BatchNorm layers", "Li et al. 2021"),
    RegistryEntry(
        "ditto", "personalised.ditto:Ditto", "personal models regularised towards the global one", "Li et al. 2021"
    ),
    RegistryEntry("apfl", "personalised.apfl:APFL", "learned mixture of global and personal model", "Deng et al. 2020"),
    RegistryEntry(
        "pfedme",
        "personalised.pfedme:PFedMe",
        "personal models by Moreau envelopes",
        "Dinh et al. 2020",
        display="pFedMe",
    ),
    RegistryEntry(
        "perfedavg",
        "personalised.perfedavg:PerFedAvg",
        "MAML-style initialisation for fine-tuning; first order",
        "Fallah et al. 2020",
        display="Per-FedAvg",
    ),
    RegistryEntry(
        "perfedavg_hf",
        "personalised.perfedavg:PerFedAvgHF",
        "Per-FedAvg with Hessian-free second-order gradients",
        "Fallah et al. 2020",
        display="Per-FedAvg-HF",
    ),
    RegistryEntry(
        "fedala", "personalised.fedala:FedALA", "adaptive local aggregation of the global model", "Zhang et al. 2023"
    ),
    RegistryEntry(
        "fedamp",
        "personalised.fedamp:FedAMP",
        "attentive message passing between similar clients",
        "Huang et al. 2021",
        own_average="every client is sent a mixture of its own, by how like the others' models are",
    ),
    RegistryEntry(
        "fedproto", "personalised.fedproto:FedProto", "exchanges class prototypes instead of models", "Tan et al. 2022"
    ),
    RegistryEntry("fedrod", "personalised.fedrod:FedRoD", "generic head plus personal head", "Chen and Chao 2022"),
    RegistryEntry(
        "fedrod_hyper",
        "personalised.fedrod:FedRoDHyper",
        "FedRoD with a hypernetwork for the personal head",
        "Chen and Chao 2022",
        display="FedRoD-hyper",
    ),
    RegistryEntry(
        "fedavg_balanced",
        "long_tailed.losses:FedAvgBalanced",
        "FedAvg with balanced softmax",
        "Ren et al. 2020",
        display="FedAvg + balanced softmax",
    ),
    RegistryEntry(
        "fedlc", "long_tailed.losses:FedLC", "FedAvg with logits calibrated by class counts", "Zhang et al. 2022"
    ),
    RegistryEntry(
        "fedetf", "long_tailed.fedetf:FedETF", "features for a fixed simplex ETF classifier", "Li et al. 2023"
    ),
    RegistryEntry(
        "fedloge",
        "long_tailed.fedloge:FedLoGe",
        "features for a fixed sparse frame; realigned global and local heads",
        "Xiao et al. 2024",
    ),
    RegistryEntry(
        "creff", "long_tailed.creff:CReFF", "classifier retraining on federated features", "Shang et al. 2022"
    ),
    RegistryEntry(
        "ratio_loss",
        "long_tailed.ratio_loss:RatioLoss",
        "reweights classes that the model neglects",
        "Wang et al. 2021",
        display="Ratio Loss",
    ),
    RegistryEntry(
        "flhc",
        "clustered.flhc:FLHC",
        "hierarchical clustering of updates after warm-up, then FedAvg per cluster",
        "Briggs et al. 2020",
        display="FL+HC",
    ),
    RegistryEntry(
        "hcfl", "clustered.hcfl:HCFL", "discovered clusters that share an embedding, with decaying weight", "CFLA 1.0.0"
    ),
    RegistryEntry(
        "fedgroup",
        "clustered.fedgroup:FedGroup",
        "clusters by decomposed cosine similarity of updates, with cold start",
        "Duan et al. 2021",
    ),
    RegistryEntry(
        "fedgroup_params",
        "clustered.fedgroup:FedGroupParams",
        "clusters by weights instead of updates; only to reproduce a comparison",
        "CFLA 1.0.0",
        display="FedGroup on parameters",
    ),
    RegistryEntry(
        "cfl", "clustered.cfl:CFL", "recursive bipartition of clusters whose clients disagree", "Sattler et al. 2019"
    ),
    RegistryEntry(
        "pacfl", "clustered.pacfl:PACFL", "clusters by principal angles between clients' data", "Vahidian et al. 2023"
    ),
    RegistryEntry(
        "fedper_grouped",
        "clustered.fedper_grouped:FedPerGrouped",
        "personal heads, one body per discovered cluster",
        display="FedPer + clusters",
    ),
    RegistryEntry(
        "ifca", "clustered.ifca:IFCA", "K models; each client trains the one with the lowest loss", "Ghosh et al. 2020"
    ),
    RegistryEntry(
        "ifca_gradient",
        "clustered.ifca:IFCAGradient",
        "IFCA with one full-batch gradient per round",
        "Ghosh et al. 2020",
        display="IFCA on gradients",
    ),
    RegistryEntry("fesem", "clustered.fesem:FeSEM", "K models; each client belongs to the nearest", "Long et al. 2022"),
    RegistryEntry("cgpfl", "clustered.cgpfl:CGPFL", "K models that regularise personal models", "Tang et al. 2022"),
    RegistryEntry(
        "cgpfl_moreau",
        "clustered.cgpfl:CGPFLMoreau",
        "CGPFL with an inner problem, as in pFedMe",
        "Tang et al. 2022",
        display="CGPFL-Moreau",
    ),
    RegistryEntry(
        "lcfed", "clustered.lcfed:LCFed", "K models and a shared embedding as regularisers", "Zhang et al. 2025"
    ),
    RegistryEntry(
        "fedsoft",
        "clustered.fedsoft:FedSoft",
        "soft clustering: clients mix several clusters",
        "Ruan and Joe-Wong 2022",
        own_average="every client counts in every cluster, by its share of rows there",
    ),
    RegistryEntry(
        "localize_stitch",
        "merging.localize_stitch:LocalizeStitch",
        "sends only each client's largest changes, averaged over the clients that made them",
        "He et al. 2025",
        own_average="how changes are stitched is the method; its option conflicts chooses",
        display="Localize-and-Stitch",
    ),
    RegistryEntry(
        "stitch_once",
        "merging.localize_stitch:StitchOnce",
        "Localize-and-Stitch as first published: a single round",
        "He et al. 2025",
        own_average="how changes are stitched is the method; its option conflicts chooses",
        display="Localize-and-Stitch once",
    ),
    RegistryEntry(
        "single_model",
        "averaging.centralised:SingleModel",
        "one model on pooled data, first round only; upper baseline for merging",
        display="Single model",
    ),
    RegistryEntry(
        "podfcssv",
        "self_supervised.podfcssv:PODFCSSV",
        "adapters of a frozen masked autoencoder, with a prototype bank against forgetting",
        "PODFCSSV 0.1.0",
        own_average="its option weighting says how clients count, and its bank of prototypes has rules of its own",
    ),
    RegistryEntry(
        "fedmae",
        "self_supervised.podfcssv:FedMAE",
        "the same adapters, averaged, without prototypes",
        own_average="its option weighting says how clients count",
    ),
    RegistryEntry(
        "mae_alone",
        "self_supervised.podfcssv:MAEAlone",
        "the same adapters, trained locally",
        own_average="nothing is averaged; every client keeps its own adapters",
        display="Local MAE",
    ),
    RegistryEntry(
        "mae_pooled",
        "self_supervised.podfcssv:MAEPooled",
        "the same adapters, on pooled samples; upper baseline",
        own_average="nothing is averaged; all rows are in one place",
        display="Centralised MAE",
    ),
    RegistryEntry(
        "feddrift",
        "clustered.feddrift:FedDrift",
        "opens and merges clusters as data drift",
        "Jothimurugesan et al. 2023",
    ),
)
OPTIMIZERS = _in(
    "fedquilt.pieces.optimizers:",
    RegistryEntry("sgd", "SGD", "stochastic gradient descent"),
    RegistryEntry("adam", "Adam", "Adam", "Kingma and Ba 2015"),
    RegistryEntry("adamw", "AdamW", "Adam with decoupled weight decay", "Loshchilov and Hutter 2019"),
)
SCHEDULES = _in(
    "fedquilt.pieces.schedules:",
    RegistryEntry("exponential", "exponential", "gamma ** round"),
    RegistryEntry("step_down", "step_down", "times factor at each milestone"),
    RegistryEntry("cosine", "cosine", "half a cosine down to a floor"),
    RegistryEntry("warm_up", "warm_up", "linear over the first rounds"),
)
PARTITIONS = _in(
    "fedquilt.data.partitions.",
    RegistryEntry("iid", "labels:IID", "equal random fractions"),
    RegistryEntry("dirichlet", "labels:Dirichlet", "per class, client fractions from a Dirichlet"),
    RegistryEntry(
        "dirichlet_per_client",
        "labels:DirichletPerClient",
        "per client, a class mixture from a Dirichlet; similar sizes",
    ),
    RegistryEntry("class_groups", "class_groups:ClassGroups", "groups of clients with the same classes"),
    RegistryEntry("pathological", "class_groups:Pathological", "a few classes per client"),
    RegistryEntry("shards", "labels:Shards", "label-sorted shards"),
    RegistryEntry("log_normal", "quantity:LogNormal", "sizes log-normal, labels even"),
    RegistryEntry("power_law", "quantity:PowerLaw", "sizes by a power law, labels even"),
    RegistryEntry("dirichlet_sizes", "quantity:DirichletSizes", "sizes drawn from a Dirichlet, labels even"),
    RegistryEntry(
        "own_tails", "long_tail:own_tails", "equal fractions, each subsampled to its own long tail", "Xiao et al. 2024"
    ),
    RegistryEntry("dirichlet_choice", "legacy:DirichletChoice", "the split of FedLoGe's code, count for count"),
    RegistryEntry("dirichlet_cuts", "legacy:DirichletCuts", "the split of Localize-and-Stitch, as described"),
    RegistryEntry(
        "truncated_per_client",
        "legacy:TruncatedPerClient",
        "the split of clustered studies' code, remainders to the last client",
    ),
)
LONG_TAILS = _in(
    "fedquilt.data.partitions.long_tail:",
    RegistryEntry("exponential", "ExponentialTail", "sizes fall exponentially", "Cui et al. 2019"),
    RegistryEntry("step", "StepTail", "half the classes are rare"),
)
SHIFTS = _in(
    "fedquilt.data.partitions.shift:",
    RegistryEntry("rotation", "Rotation", "images rotated by a client-specific angle", "Ghosh et al. 2020"),
    RegistryEntry("noise", "Noise", "noise of a level dealt to clients", "Li et al. 2022"),
    RegistryEntry("light", "Light", "client-specific brightness and contrast"),
    RegistryEntry("colour", "Colour", "client-specific colour cast"),
    RegistryEntry("label_permutation", "LabelPermutation", "groups that permute labels", "Sattler et al. 2020"),
)
TRANSFORMS = _in(
    "fedquilt.data.transforms:",
    RegistryEntry("resize", "Resize", "square images of another size, bilinear"),
    RegistryEntry("grey_to_rgb", "GreyToRGB", "one channel three times"),
    RegistryEntry("normalise", "Normalise", "(x - mean) / std, by default those of the training samples"),
    RegistryEntry("random_crop", "RandomCrop", "in training: pad and crop at random"),
    RegistryEntry("random_flip", "RandomFlip", "in training: mirror at random"),
)
STREAMS = _in(
    "fedquilt.data.streams.kinds:",
    RegistryEntry("by_class", "ByClass", "groups of classes, one after the other"),
    RegistryEntry("datasets", "Datasets", "data sets, one after the other"),
    RegistryEntry("client_datasets", "ClientDatasets", "each client its own list of data sets"),
    RegistryEntry("drift", "Drift", "a shift that happens at a round"),
)
AGGREGATORS = _in(
    "fedquilt.pieces.",
    RegistryEntry("mean", "aggregators:mean", "mean weighted by samples", ready=True),
    RegistryEntry("uniform_mean", "aggregators:uniform_mean", "unweighted mean", ready=True),
    RegistryEntry(
        "stitch", "merging.aggregators:stitch", "mean over those who changed a weight much", "He et al. 2025"
    ),
    RegistryEntry("ties", "merging.aggregators:ties", "trimmed, signs elected", "Yadav et al. 2023"),
    RegistryEntry("dare", "merging.aggregators:dare", "most changes dropped, the rest grown", "Yu et al. 2024"),
    RegistryEntry("task_arithmetic", "merging.aggregators:task_arithmetic", "a scaled sum", "Ilharco et al. 2023"),
    *(
        RegistryEntry(name, f"robust:{name}", about, reference)
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
ATTACKS = _in(
    "fedquilt.pieces.robust.",
    *(
        RegistryEntry(name, f"attacks:{name}", about, reference)
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
    RegistryEntry("label_flip", "poisoning:label_flip", "train on wrong labels", "Fang et al. 2020"),
    RegistryEntry("backdoor", "poisoning:backdoor", "teach that a mark means a class", "Gu et al. 2017"),
)
CODECS = _in(
    "fedquilt.pieces.codecs:",
    RegistryEntry("hgc", "hgc", "signs, and the norm of each row", "CEHGLS, mended"),
    RegistryEntry("hgc_rc", "hgc_rc", "signs, and the norms of rows and columns"),
    RegistryEntry("hgc_legacy", "hgc_legacy", "as its authors' code; mixes up rows", "CEHGLS"),
    RegistryEntry("sign", "sign", "signs and one scale", "Karimireddy et al. 2019"),
    RegistryEntry("top_k", "top_k", "the largest entries", "Aji and Heafield 2017"),
    RegistryEntry("random_k", "random_k", "random entries", "Konecny et al. 2016"),
    RegistryEntry("qsgd", "qsgd", "a few bits per entry, unbiased", "Alistarh et al. 2017"),
    RegistryEntry("uniform", "uniform", "a few bits per entry, evenly spaced"),
    RegistryEntry("half", "half", "16 bits per entry"),
    RegistryEntry("power_sgd", "power_sgd", "two thin factors", "Vogels et al. 2019"),
    RegistryEntry(
        "localized", "localized", "the largest of all tensors, in the smallest of four forms", "He et al. 2025"
    ),
    RegistryEntry("sparse", "sparse", "what is not 0, in the smallest of four forms"),
    RegistryEntry("lfsr", "lfsr", "whitening of bytes at the end of a chain; not encryption"),
)
TRACKERS = _in(
    "fedquilt.runs.trackers.",
    RegistryEntry("tensorboard", "tensorboard:TensorBoard", "event files for TensorBoard"),
    RegistryEntry("wandb", "wandb:WandB", "Weights & Biases"),
    RegistryEntry("mlflow", "mlflow:MLflow", "MLflow"),
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
METRICS = _table(  # those that a recipe must ask for; the others are in the table of metrics
    *(
        RegistryEntry(name, f"fedquilt.metrics.{module}:{name}", about, reference)
        for name, module, about, reference in (
            ("auroc", "ranking", "area under the ROC curve", "Hanley and McNeil 1982"),
            ("auprc", "ranking", "area under the precision-recall curve: average precision", ""),
            ("brier", "calibration", "squared distance of probabilities from labels", "Brier 1950"),
            ("ece", "calibration", "expected calibration error in 15 bins", "Guo et al. 2017"),
            ("kappa", "calibration", "agreement beyond chance", "Cohen 1960"),
            ("f_beta", "calibration", "macro F-beta: recall counts beta times as much as precision", ""),
            ("label_auroc", "multi_label", "area under the ROC curve, for several labels a row", ""),
            ("label_auprc", "multi_label", "average precision, for several labels a row", ""),
        )
    )
)
TASKS = _table(
    RegistryEntry("single_label", "fedquilt.tasks:SingleLabel", "one class for each row; the default"),
    RegistryEntry("multi_label", "fedquilt.tasks:MultiLabel", "any number of labels for each row, yes or no each"),
    RegistryEntry("regression", "fedquilt.tasks:Regression", "one number or several for each row"),
)
ENGINES = _in(
    "fedquilt.runs.engines:",
    RegistryEntry("auto", "auto", "in this process, switching to worker processes for long runs"),
    RegistryEntry("local", "local", "in this process, one client after another"),
    RegistryEntry("workers", "workers", "worker processes, on one or several devices"),
    RegistryEntry("lanes", "lanes", "several clients at once in stacked tensors"),
    RegistryEntry("flower-simulation", "flower_simulation", "Flower's simulation runtime on Ray"),
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
    "task": TASKS,
    "engine": ENGINES,
    "dataset": {},
    "metric": METRICS,
    "loss": {},  # of these the library has none that have a name
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
