"""Known data sets whose rows come from people, and texts."""

from __future__ import annotations

from fedquilt.data.catalogue import Entry, File, Hub

_FORMATS = "fedquilt.data.formats"
_LEAF = (
    "LEAF makes these files: clone github.com/TalwalkarLab/leaf, run data/{name}/preprocess.sh there, and copy the "
    "folder data/{name}/data (with train and test) into the folder of this data set."
)
_AG_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_UCI = "https://archive.ics.uci.edu/static/public/"

PEOPLE = (
    Entry(
        "femnist", "none stated by NIST; LEAF: BSD 2-clause", "Caldas et al. 2018 (LEAF), writers of EMNIST",
        (1, 28, 28), None, 62, f"{_FORMATS}.leaf:femnist", markers=("data/train", "train"),
        files=(File("data/train/*.json"), File("data/test/*.json")), by_hand=_LEAF.format(name="femnist"),
        hub=Hub("flwrlabs/femnist", image="image", label="character", user="writer_id", test="", colour=False),
    ),
    Entry(
        "shakespeare", "public domain", "Caldas et al. 2018 (LEAF), roles of plays",
        (80,), None, 80, f"{_FORMATS}.leaf:shakespeare", markers=("data/train", "train"),
        files=(File("data/train/*.json"), File("data/test/*.json")), by_hand=_LEAF.format(name="shakespeare"),
        hub=Hub("flwrlabs/shakespeare"),
    ),
    Entry(
        "shakespeare_roles", "public domain", "37 plays, one row per speech: play, role, text",
        (80,), None, 80, f"{_FORMATS}.leaf:shakespeare_roles",
        markers=("shakespeare_roles.csv.gz", "shakespeare_roles.csv"),
        files=(File("shakespeare_roles.csv.gz"),),
        by_hand="Write the speeches yourself, as a compressed CSV with the columns play, role and text.",
    ),
    Entry(
        "ag_news", "research, non-commercial", "Zhang, Zhao, LeCun 2015, from AG's corpus", (128,), 120000, 4,
        f"{_FORMATS}.text:ag_news", markers=("train.csv",),
        files=(
            File("train.csv", (f"{_AG_NEWS}train.csv",), 29470338, "md5:b1a00f826fdfbd249f79597b59e1dc12"),
            File("test.csv", (f"{_AG_NEWS}test.csv",), 1857427, "md5:d52ea96a97a2d943681189a97654912d"),
        ),
        hub=Hub("fancyzhx/ag_news"),
        texts=f"{_FORMATS}.text:strings",
    ),
    Entry(
        "uci_har", "CC BY 4.0; its readme: not commercial", "Anguita et al. 2013, 30 people",
        (9, 128), 7352, 6, f"{_FORMATS}.har:uci_har", markers=("train/Inertial Signals",),
        files=(File(
            "human_activity_recognition_using_smartphones.zip",
            (f"{_UCI}240/human+activity+recognition+using+smartphones.zip",), 61005872,
            "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
        ),),
    ),
    Entry(
        "hapt", "CC BY 4.0; its readme: not commercial", "Reyes-Ortiz et al. 2015, 30 people",
        (6, 128), None, 6, f"{_FORMATS}.har:hapt", f"{_FORMATS}.har:hapt_npz",
        keys="x, y, user, or whole recordings: signal_delta, scale, label, experiment, user",
        markers=("RawData/labels.txt",),
        files=(File(
            "hapt.zip",
            (f"{_UCI}341/smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",), 79596192,
            "sha256:4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
        ),),
    ),
    Entry(
        "inaturalist", "that of each photo; non-commercial",
        "Hsu, Qi, Brown 2020 (iNaturalist-User-120k)",
        (3, 64, 64), 120300, 1203, f"{_FORMATS}.lists:inaturalist",
        markers=("federated_train_user_120k.csv",), scattered=True,
        files=(File(
            "inaturalist-user-120k.zip",
            ("http://storage.googleapis.com/gresearch/federated-vision-datasets/inaturalist-user-120k.zip",),
        ),),
        by_hand="The images themselves are those of iNaturalist 2017 (github.com/visipedia/inat_comp): "
        "put its folder train_val_images there too.",
    ),
)  # fmt: skip
