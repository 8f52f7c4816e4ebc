"""PFLlib's arguments, as flags that mean what they say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from fedquilt.errors import InputError

BINS = (8, 16, 32, 64)
DEFAULTS = {  # of what PFLlib and CEHGLS begin with differently
    "pfllib": {"local_learning_rate": 0.005, "local_epochs": 1, "global_rounds": 2000},
    "cehgls": {"local_learning_rate": 0.01, "local_epochs": 2, "global_rounds": 100},
}
TOP = 100  # scores after which a best accuracy is old


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}. 'python -m fedquilt.compat.pfllib --help' lists the arguments.")


def truth(text: str) -> bool:
    """True or False in words; anything else is refused (PFLlib takes every text for True)."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return words[text.lower()]


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def device_numbers(text: str) -> tuple[int, ...]:
    """CUDA devices, as '0' or '0,1'."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of distinct device numbers such as 0,1")
    return tuple(int(word) for word in words)


def whole(least: int) -> Any:
    """Whole numbers from a least one."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    made = _Parser(
        prog="python -m fedquilt.compat.pfllib",
        allow_abbrev=False,
        description="Run an experiment in PFLlib's words: its dataset folders in, its .h5 results out.",
        epilog="Example: python -m fedquilt.compat.pfllib -data Cifar10 -m CNN -algo FedAvg -gr 200 -nc 20 -uhg -ugc",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument

    def flag(*names: str, about: str) -> None:
        add(*names, type=truth, nargs="?", const=True, default=False, metavar="True|False", help=about)

    add("-go", "--goal", default="test", help="part of the results' names (test)")
    add("-dev", "--device", choices=("cpu", "cuda"), default="cuda", help="cuda if there is one, else the CPU (cuda)")
    add("-did", "--device_id", type=device_numbers, default=(0,), help="CUDA devices, such as 0 or 0,1 (0)")
    add("-data", "--dataset", default="MNIST", help="a folder of --dataset_root, in any case (MNIST)")
    add("-ncl", "-nb", "--num_classes", type=whole(2), help="must agree with the data (theirs)")
    add(
        "-m",
        "-model",
        "--model",
        default="CNN",
        help="CNN, ResNet10, ViT; also MLR, DNN, ResNet18, ResNet34, TextCNN (CNN)",
    )
    add("-lbs", "--batch_size", type=whole(1), default=10, help="rows of a local step (10)")
    add("-lr", "--local_learning_rate", type=float, help="of plain SGD (0.005; CEHGLS: 0.01)")
    flag("-ld", "--learning_rate_decay", about="the learning rate falls by gamma each round")
    add("-ldg", "--learning_rate_decay_gamma", type=float, default=0.99, help="gamma (0.99)")
    add("-gr", "--global_rounds", type=whole(0), help="T; scores are taken before and after each (2000; CEHGLS: 100)")
    add("-ls", "--local_epochs", type=whole(1), help="passes over a client's samples (1; CEHGLS: 2)")
    add("-algo", "--algorithm", default="FedAvg", help="FedAvg, FedProx, FedPer, ... in any case (FedAvg)")
    add("-jr", "--join_ratio", type=share, default=1.0, help="share of the clients that train in a round (1)")
    flag("-rjr", "--random_join_ratio", about="a random share, from --join_ratio up to all")
    add("-nc", "--num_clients", type=whole(1), default=20, help="the first so many of the folder train (20)")
    add("-pv", "--prev", type=whole(0), default=0, help="the first run's number (0)")
    add("-t", "--times", type=whole(1), default=1, help="runs up to this number; a run's number is its seed (1)")
    add("-eg", "--eval_gap", type=whole(1), default=1, help="rounds between scores (1)")
    add("-sfn", "--save_folder_name", default="items", help="where the last global model goes (items)")
    flag("-ab", "--auto_break", about="stop when the best accuracy is more than --top_cnt scores old")
    add("-tc", "--top_cnt", type=whole(1), default=TOP, help=f"of --auto_break ({TOP})")
    flag("-dlg", "--dlg_eval", about="attack what is sent (fedquilt audit's dlg)")
    add("-dlgg", "--dlg_gap", type=whole(1), default=100, help="rounds between attacks (100)")
    add("-bnpc", "--batch_num_per_client", type=whole(1), default=2, help="batches an attack searches for (2)")
    add("-nnc", "--num_new_clients", type=whole(0), default=0, help="the next so many of the folder are newcomers (0)")
    add("-ften", "--fine_tuning_epoch_new", type=whole(0), default=0, help="epochs of tuning for newcomers (0)")
    add("-fd", "--feature_dim", type=whole(1), default=512, help="width of CNN's features, TextCNN's vectors (512)")
    add("-vs", "--vocab_size", type=whole(1), help="how many token ids there are; only TextCNN takes it (80)")
    add("-ml", "--max_len", type=whole(1), help="tokens of a text; must agree with the data; only TextCNN takes it")
    add("-fs", "--few_shot", type=whole(0), default=0, help="only the first so many rows of each class train; 0: all")
    add("-cdr", "--client_drop_rate", type=share, default=0.0, help="share of the uploads that get lost (0)")
    add("-tsr", "--train_slow_rate", type=share, default=0.0, help="share of clients that do fewer epochs (0)")
    add("-ssr", "--send_slow_rate", type=share, default=0.0, help="share of clients with slow lines, simulated (0)")
    flag("-ts", "--time_select", about="refused: PFLlib never uses it")
    add("-tth", "--time_threthold", type=float, default=10000.0, help="mean simulated seconds, at most (10000)")
    flag("-uhg", "--use_head_grad", about="HGLS: own heads, and a search along the others' head gradients")
    flag("-ugc", "--use_grad_compress", about="HGC: head gradients in about one bit per number; needs -uhg")
    add("-bw", "--bit_width", type=int, choices=BINS, help="bins of the compression, not bits; needs -ugc (16)")
    own = made.add_argument_group("not in PFLlib")
    own.add_argument(
        "--as_coded",
        action="store_true",
        help="-uhg and -ugc as their authors' code has them: last batch's gradient, own base, bins without their rows",
    )
    own.add_argument("--as", dest="like", choices=tuple(DEFAULTS), default="pfllib", help="whose defaults (pfllib)")
    own.add_argument(
        "--shared_start",
        type=truth,
        default=True,
        metavar="True|False",
        help="what clients keep to themselves starts with the same values everywhere, as in PFLlib (True)",
    )
    own.add_argument(
        "--search", choices=("greedy", "joint"), help="how -uhg combines gradients: one by one, or all at once (greedy)"
    )
    own.add_argument("--dataset_root", help="where dataset folders are (dataset, or ../dataset)")
    own.add_argument("--results_folder", default="results", help="where results go (results)")
    own.add_argument("--engine", choices=("auto", "local", "workers"), default="auto", help="(auto)")
    some = made.add_argument_group("of single algorithms; refused with others")
    for names, kind, about in OWN:
        some.add_argument(*names, type=kind, help=about)
    return made


OWN: tuple[tuple[tuple[str, str], Any, str], ...] = (
    (("-mu", "--mu"), float, "FedProx, Ditto, MOON"),
    (("-bt", "--beta"), float, "pFedMe"),
    (("-lam", "--lamda"), float, "pFedMe, FedAMP, FedProto"),
    (("-K", "--K"), whole(1), "pFedMe: inner steps"),
    (("-lrp", "--p_learning_rate"), float, "pFedMe: inner learning rate"),
    (("-alk", "--alphaK"), float, "FedAMP"),
    (("-sg", "--sigma"), float, "FedAMP"),
    (("-al", "--alpha"), float, "APFL, FedDyn"),
    (("-pls", "--plocal_epochs"), whole(1), "Ditto, FedRep"),
    (("-tau", "--tau"), float, "MOON"),
    (("-fte", "--fine_tuning_epochs"), whole(1), "FedBABU"),
    (("-slr", "--server_learning_rate"), float, "SCAFFOLD"),
    (("-et", "--eta"), float, "FedALA"),
    (("-s", "--rand_percent"), whole(1), "FedALA"),
    (("-p", "--layer_idx"), whole(0), "FedALA"),
)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, checked one by one and against each other."""
    asked = parser().parse_args(words)
    for name, value in DEFAULTS[asked.like].items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    if asked.top_cnt != TOP and not asked.auto_break:
        raise InputError("-tc without -ab has no effect. Add -ab, or leave -tc out.")
    if not asked.goal or "/" in asked.goal:
        raise InputError(f"-go {asked.goal}: it is part of the names of files, so it may not be empty or hold a '/'.")
    if asked.prev >= asked.times:
        raise InputError(f"-pv {asked.prev} -t {asked.times}: no run is left; runs go from -pv to -t minus 1.")
    _check_clients(asked)
    _check_rates(asked)
    if asked.time_select:
        raise InputError("-ts has no effect in PFLlib, so there is nothing to do here. Leave it out; -tth works alone.")
    _check_heads(asked)
    return asked


def _check_rates(asked: argparse.Namespace) -> None:
    for name in ("local_learning_rate", "time_threthold"):
        if not getattr(asked, name) > 0:
            raise InputError(f"--{name} must be positive, got {getattr(asked, name)}.")
    if asked.learning_rate_decay is False and asked.learning_rate_decay_gamma != 0.99:
        raise InputError("-ldg without -ld has no effect. Add -ld, or leave -ldg out.")


def _check_clients(asked: argparse.Namespace) -> None:
    if int(asked.num_clients * asked.join_ratio) < 1:
        raise InputError(f"-jr {asked.join_ratio} of {asked.num_clients} clients is no client. Give a larger fraction.")
    if int((1 - asked.client_drop_rate) * int(asked.num_clients * asked.join_ratio)) < 1:
        raise InputError(f"-cdr {asked.client_drop_rate}: every upload would get lost. Give a smaller rate.")
    if asked.num_new_clients == 0 and asked.fine_tuning_epoch_new:
        raise InputError("-ften tunes newcomers, and there are none. Add -nnc, or leave -ften out.")


def _check_heads(asked: argparse.Namespace) -> None:
    if asked.use_grad_compress and not asked.use_head_grad:
        raise InputError("-ugc compresses the head gradients of -uhg; without -uhg there are none. Add -uhg.")
    if asked.bit_width is not None and not asked.use_grad_compress:
        raise InputError("-bw is for -ugc, which is not there. Add -ugc, or leave -bw out.")
    if asked.as_coded and not asked.use_head_grad:
        raise InputError("--as_coded says how -uhg works, which is not there. Add -uhg, or leave --as_coded out.")
    if asked.search is not None and (asked.as_coded or not asked.use_head_grad):
        raise InputError("--search says how -uhg searches, and --as_coded is greedy. Add -uhg, or leave --search out.")
