"""PFLlib's command on a small folder: arguments, loops, results, refusals."""

from __future__ import annotations

import builtins
import os

import numpy as np
import pytest
import safetensors.torch

from fedquilt.compat import play, results
from fedquilt.compat.algorithms import ALGORITHMS, method_settings, model_settings, variant_of
from fedquilt.compat.arguments import parsed
from fedquilt.compat.pfllib import federations, folder_of, main, run
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.models.registry import net
from fedquilt.rounds.client import ClientSide
from fedquilt.runs.build import method_of
from fedquilt.runs.runner import run as fedquilt_run
from helpers.pfllib import write_folder
from helpers.toy import last

h5py = pytest.importorskip("h5py")
QUICK = ("-dev", "cpu", "-nc", "4", "-m", "DNN", "-lbs", "8", "-ls", "1", "-lr", "0.05", "--engine", "local")


@pytest.fixture
def place(tmp_path, monkeypatch):
    write_folder(tmp_path / "dataset")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path):
    with h5py.File(path) as file:
        return {name: np.array(file[name]) for name in file}, dict(file.attrs)


def test_a_run(place, capsys):
    """T rounds have T + 1 scores; the first is of the model nobody has trained."""
    (path,) = run([*QUICK, "-data", "mnist", "-gr", "3", "-go", "first"])
    assert path.name == "MNIST_FedAvg_first_0.h5"
    series, about = read(path)
    assert {name: len(values) for name, values in series.items()} == {
        **dict.fromkeys(results.SERIES, 4),
        **dict.fromkeys(results.SENT, 3),
    }
    assert about["variant"] == "FedAvg"
    assert series["rs_train_loss"][-1] < series["rs_train_loss"][0]
    assert np.isfinite(series["rs_test_auc"]).all()
    said = capsys.readouterr().out
    assert "best accuracy (the highest of all scores, so chosen on the test samples)" in said
    assert "mean accuracy of the last 4 scores" in said
    assert safetensors.torch.load_file(place / "items" / "MNIST_FedAvg_first_0.safetensors")


def test_it_is_the_librarys_own_run(place):
    """The scores after the last round are those of the same recipe in fedquilt."""
    asked = parsed([*QUICK, "-gr", "2", "-pv", "3", "-t", "4"])
    federation, _ = federations(asked, folder_of(asked))
    config = play.settings(asked, (1, 28, 28), 3)
    snapshot = last(method_of(config, federation), federation, rounds=2, seed=3)
    right = rows = 0
    for client in federation.ids:
        batch = federation.evaluation(client, "test").whole()
        right += int((snapshot.method.predict(snapshot.personal_model(client), batch).argmax(1) == batch.y).sum())
        rows += len(batch)
    (path,) = run([*QUICK, "-gr", "2", "-pv", "3", "-t", "4"])
    assert read(path)[0]["rs_test_acc"][-1] == pytest.approx(right / rows)


def test_scores_by_hand(place):
    """Accuracy over rows, AUC of all (row, class) scores, loss on training samples: as plain numpy tells them."""
    asked = parsed([*QUICK, "-gr", "0"])
    federation, _ = federations(asked, folder_of(asked))
    config = play.settings(asked, (1, 28, 28), 0)
    method = method_of(config, federation)
    model = method.init_server(Seed(0).fold("server")).shared
    (path,) = run([*QUICK, "-gr", "0"])
    series = read(path)[0]
    right, rows, loss, trained, areas = 0, 0, 0.0, 0, []
    for client in federation.ids:
        batch = federation.evaluation(client, "test").whole()
        scores, y = method.predict(model, batch).numpy(), batch.y.numpy()
        positive = scores[np.arange(len(y)), y]
        negative = scores[np.arange(3) != y[:, None]]
        beats = (positive[:, None] > negative).mean() + (positive[:, None] == negative).mean() / 2
        right, rows = right + (scores.argmax(1) == y).sum(), rows + len(y)
        areas.append(beats * len(y))
        own = federation.site(client, 0).train.whole()
        out = method.predict(model, own).numpy().astype(np.float64)
        logs = out - np.log(np.exp(out).sum(1, keepdims=True))
        loss, trained = loss - logs[np.arange(len(own.y)), own.y].sum(), trained + len(own.y)
    assert series["rs_test_acc"].tolist() == [pytest.approx(right / rows)]
    assert series["rs_test_auc"].tolist() == [pytest.approx(sum(areas) / rows, abs=1e-6)]
    assert series["rs_train_loss"].tolist() == [pytest.approx(loss / trained, rel=1e-5)]


def test_gaps_and_repeats(place, capsys):
    paths = run([*QUICK, "-gr", "5", "-eg", "2", "-t", "2"])
    assert [p.name[-4] for p in paths] == ["0", "1"]
    first, second = (read(p)[0]["rs_test_acc"] for p in paths)
    assert len(first) == 3  # before rounds 0, 2 and 4
    assert "over 2 runs" in capsys.readouterr().out
    again = run([*QUICK, "-gr", "5", "-eg", "2", "-pv", "1", "-t", "2"])
    assert np.array_equal(read(again[0])[0]["rs_test_acc"], second)
    assert "over 2 runs" in capsys.readouterr().out  # the first is read from its file
    (place / "results" / "MNIST_FedAvg_test_0.h5").unlink()
    run([*QUICK, "-gr", "1", "-pv", "1", "-t", "2"])
    assert "runs before -pv are not in the summary" in capsys.readouterr().out


def test_auto_break(place):
    """The best of 1, 2, ... scores is more than -tc old."""
    (path,) = run([*QUICK, "-gr", "30", "-ab", "-tc", "2", "-lr", "0.000001"])
    accuracy = read(path)[0]["rs_test_acc"]
    assert len(accuracy) - int(accuracy.argmax()) == 3
    assert len(accuracy) < 31


@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if a.name != "FedBN"], ids=lambda a: a.name)
def test_every_algorithm_runs(place, algorithm):
    given = ["-bt", "1"] if algorithm.name == "pFedMe" else []
    (path,) = run([*QUICK, "-algo", algorithm.name.lower(), "-gr", "1", *given])
    assert path.name == f"MNIST_{algorithm.name}_test_0.h5"
    assert np.isfinite(read(path)[0]["rs_test_acc"]).all()


def test_hard_conditions(place, capsys):
    """Joining at random, lost uploads, slow clients: another run, but a reproducible one."""
    plain = read(run([*QUICK, "-gr", "3"])[0])[0]["rs_train_loss"]
    hard = ("-jr", "0.5", "-rjr", "-cdr", "0.5", "-tsr", "0.5", "-ssr", "0.5", "-tth", "0.05")
    one, two = (read(run([*QUICK, "-gr", "3", "-go", "hard", *hard])[0])[0]["rs_train_loss"] for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.allclose(one[1:], plain[1:])
    assert one[0] == plain[0]


def test_the_learning_rate_decays(place):
    a, b = (read(run([*QUICK, "-gr", "3", *words])[0])[0]["rs_train_loss"] for words in ([], ["-ld", "-ldg", "0.5"]))
    assert a[1] == b[1]
    assert a[2] != b[2]


def test_newcomers(place, capsys):
    few = [word if word != "4" else "3" for word in QUICK]
    (path,) = run([*few, "-gr", "3", "-nnc", "1", "-ften", "2"])
    said = capsys.readouterr().out
    assert "1 newcomers, the global model after 2 epochs of tuning: accuracy" in said
    assert 0 <= read(path)[1]["new_clients_accuracy"] <= 1
    with pytest.raises(InputError, match="FedPer has no global model to give newcomers"):
        run([*few, "-algo", "FedPer", "-nnc", "1"])
    run([*few, "-algo", "FedPer", "-gr", "1", "-nnc", "1", "-ften", "1"])
    with pytest.raises(InputError, match=r"-nc 4 and -nnc 1: .*MNIST holds 4 clients"):
        run([*QUICK, "-nnc", "1"])


def test_dlg(place, capsys):
    run([*QUICK, "-gr", "2", "-dlg", "-dlgg", "2", "-bnpc", "1", "-lbs", "2", "-m", "MLR", "-nc", "1"])
    said = capsys.readouterr().out
    assert "DLG at round 0: PSNR" in said
    assert "DLG at round 1:" not in said
    assert "DLG at round 2: PSNR" in said
    run([*QUICK, "-gr", "0", "-dlg", "-algo", "Local"])
    assert "DLG at round 0: no gradient and no change of weights was sent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-data", "Cifar"], "not below dataset or ../dataset, where there is MNIST"),
        (["-data", "Cifar"], r"python -m fedquilt.compat.write_folder RECIPE.toml --to dataset/Cifar"),
        (["-algo", "FedFomo"], "-algo FedFomo: not here"),
        (["-algo", "FedAvgg"], "did you mean 'FedAvg'"),
        (["-m", "LSTM"], "-m LSTM: not here"),
        (["-m", "ResNet10"], "takes 3 channels; MNIST has 1"),
        (["-m", "ViT", "-fd", "64"], "-fd 64: only CNN takes another width of features"),
        (["-m", "DNN", "-fd", "64"], "-fd 64: only CNN takes another width of features"),
        (["-go", "a/b"], "-go a/b: it is part of the names of files"),
        (["-did", "x"], "'x' is not a list of distinct device numbers such as 0,1"),
        (["-did", "0,0"], "'0,0' is not a list of distinct device numbers"),
        (["-ncl", "10"], "-ncl 10: .*MNIST has 3 classes"),
        (["-tc", "5"], "-tc without -ab has no effect"),
        (["-vs", "100"], "-vs 100: only TextCNN takes texts, DNN does not"),
        (["-ml", "9"], "-ml 9: only TextCNN takes texts"),
        (["-fs", "-1"], "-1 is less than 0"),
        (["-m", "TextCNN"], "-m TextCNN takes rows of token ids; the rows of MNIST have the shape"),
        (["--as", "flower"], "invalid choice: 'flower'"),
        (["-nb", "10"], "MNIST has 3 classes"),
        (["-nc", "9"], "-nc 9: .*holds 4 clients"),
        (["-ts"], "-ts has no effect in PFLlib"),
        (["-ugc"], "without -uhg there are none"),
        (["-bw", "16"], "-bw is for -ugc"),
        (["-uhg", "-ugc", "-bw", "12"], "invalid choice: 12"),
        (["-uhg", "-algo", "Ditto"], "-uhg searches on top of FedAvg, FedProx, SCAFFOLD, FedPer, FedRep, not of Ditto"),
        (["-mu", "1"], "-mu is of FedProx, Ditto, MOON; FedAvg makes no use of it"),
        (["-algo", "pFedMe"], "pFedMe needs --beta"),
        (["-algo", "FedBN"], "this network has none"),
        (["-ld", "maybe"], "'maybe' is neither True nor False"),
        (["-ldg", "0.5"], "-ldg without -ld"),
        (["-jr", "0.1"], "is no client"),
        (["-jr", "1.5"], "1.5 is not between 0 and 1"),
        (["-cdr", "0.9"], "every upload would get lost"),
        (["-gr", "-1"], "-1 is less than 0"),
        (["-pv", "1"], "no run is left"),
        (["-ften", "1"], "-ften tunes newcomers"),
        (["-lr", "0"], "--local_learning_rate must be positive"),
        (["--rounds", "3"], "unrecognized arguments: --rounds 3"),
        (["-dev", "tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_refusals(place, words, message):
    with pytest.raises(InputError, match=message):
        run([*QUICK, *words])
    assert not (place / "results").exists()


def test_words_for_true_and_false():
    assert parsed(["-ld", "False"]).learning_rate_decay is False
    assert parsed(["-ld", "True"]).learning_rate_decay is True
    assert parsed(["-ld"]).learning_rate_decay is True
    assert parsed(["-model", "CNN"]).model == "CNN"  # as the published quick start has it


def test_defaults_are_the_published_ones():
    asked = vars(parsed([]))
    for name, value in {
        "goal": "test",
        "device": "cuda",
        "device_id": (0,),
        "dataset": "MNIST",
        "model": "CNN",
        "batch_size": 10,
        "local_learning_rate": 0.005,
        "learning_rate_decay": False,
        "learning_rate_decay_gamma": 0.99,
        "global_rounds": 2000,
        "local_epochs": 1,
        "top_cnt": 100,
        "few_shot": 0,
        "algorithm": "FedAvg",
        "join_ratio": 1.0,
        "random_join_ratio": False,
        "num_clients": 20,
        "prev": 0,
        "times": 1,
        "eval_gap": 1,
        "save_folder_name": "items",
        "auto_break": False,
        "dlg_eval": False,
        "dlg_gap": 100,
        "batch_num_per_client": 2,
        "num_new_clients": 0,
        "fine_tuning_epoch_new": 0,
        "feature_dim": 512,
        "client_drop_rate": 0.0,
        "train_slow_rate": 0.0,
        "send_slow_rate": 0.0,
        "time_select": False,
        "time_threthold": 10000.0,
        "use_head_grad": False,
        "use_grad_compress": False,
    }.items():
        assert asked[name] == value, name
    told = parsed(["--as", "cehgls"])
    assert (told.local_learning_rate, told.local_epochs, told.global_rounds) == (0.01, 2, 100)
    assert parsed(["--as", "cehgls", "-ls", "5"]).local_epochs == 5
    assert parsed(["-did", "0,1"]).device_id == (0, 1)
    assert parsed(["-ncl", "7"]).num_classes == parsed(["-nb", "7"]).num_classes == 7


@pytest.mark.parametrize(
    ("words", "shape", "base"),
    [
        (["-m", "CNN"], (1, 28, 28), 576_896),
        (["-m", "cnn"], (3, 32, 32), 873_408),
        (["-m", "ResNet10"], (3, 32, 32), None),
        (["-m", "ViT"], (1, 28, 28), None),
        (["-m", "ViT"], (3, 64, 64), None),
    ],
)
def test_models_are_the_published_ones(words, shape, base):
    """The head takes 512 features; FedAvgCNN's base has 576,896 parameters for 1x28x28 and 873,408 for 3x32x32."""
    options = model_settings(parsed(words), shape)
    made = net(options.pop("kind"), shape, 10, **options)
    params = made.init(Seed(0))
    assert params["head.weight"].shape == (10, 512)
    body = sum(params[n].numel() for n in made.trainable if not n.startswith("head."))
    assert base is None or body == base
    if words[1] == "ViT":
        assert not params["head.weight"].any()


def test_names_in_any_case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "dataset", "Cifar10", shape=(3, 32, 32), rows=8)
    for name in ("cifar10", "CIFAR10", "CIFAR-10", "Cifar10"):
        assert folder_of(parsed(["-data", name])).name == "Cifar10"
    write_folder(tmp_path / "other", "FashionMNIST", rows=4)
    asked = parsed(["-data", "fashion_mnist", "--dataset_root", str(tmp_path / "other")])
    assert folder_of(asked).name == "FashionMNIST"
    (tmp_path / "dataset" / "CIFAR10").mkdir()
    assert folder_of(parsed(["-data", "CIFAR10"])).name == "CIFAR10"
    with pytest.raises(InputError, match="could be CIFAR10 or Cifar10"):
        folder_of(parsed(["-data", "cifar10"]))


def test_without_h5py(place, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "h5py":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r'pip install "fedquilt\[compat\]"'):
        run([*QUICK, "-gr", "1"])


def test_the_entry_point(place, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pfllib", "-ts"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "fedquilt: -ts has no effect" in capsys.readouterr().err
    assert os.listdir(place) == ["dataset"]


def test_head_gradients(place, capsys, monkeypatch):
    """-uhg, -uhg -ugc and --as_coded are the recipes of HGLS; each has a name of its own."""
    monkeypatch.setattr(play, "ATTACKED", 1)
    small = [*QUICK, "-gr", "2", "-dlg", "-bnpc", "1", "-lbs", "2"]
    names, ends = [], []
    coded = ["-uhg", "-ugc", "--as_coded"]
    for words in ([], ["-uhg"], ["-uhg", "-ugc"], ["-uhg", "-ugc", "-bw", "8"], ["-uhg", "--as_coded"], coded):
        (path,) = run([*(small if words == ["-uhg", "-ugc"] else [*QUICK, "-gr", "2"]), *words])
        names.append(path.name)
        ends.append(float(read(path)[0]["rs_train_loss"][-1]))
    assert names == [
        "MNIST_FedAvg_test_0.h5",
        "MNIST_FedAvg-HGLS_test_0.h5",
        "MNIST_FedAvg-HGLS-HGC16_test_0.h5",
        "MNIST_FedAvg-HGLS-HGC8_test_0.h5",
        "MNIST_FedAvg-HGLScoded_test_0.h5",
        "MNIST_FedAvg-HGLScoded-HGCcoded16_test_0.h5",
    ]
    assert len(set(ends)) == len(ends)
    assert "DLG at round 0: PSNR" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ["FedProx", "SCAFFOLD", "FedPer", "FedRep"])
def test_head_gradients_on_other_bases(place, algorithm):
    (path,) = run([*QUICK, "-gr", "1", "-algo", algorithm, "-uhg", "-jr", "0.5", "-rjr", "-cdr", "0.5", "-tsr", "0.5"])
    assert path.name == f"MNIST_{algorithm}-HGLS_test_0.h5"


def test_the_settings_of_head_gradients():
    asked = parsed(["-uhg", "-ugc", "-bw", "64", "--as_coded"])
    assert method_settings(asked) == {
        "kind": "hgls",
        "base": "fedavg",
        "gradient": "last_batch",
        "search_base": "local",
        "gradient_codec": "hgc_legacy",
        "num_bins": 64,
    }


def test_bytes_of_every_round(place, capsys):
    """What the metrics of the same recipe tell; printed round by round and in all."""
    asked = parsed([*QUICK, "-gr", "2"])
    federation, _ = federations(asked, folder_of(asked))
    config = play.settings(asked, (1, 28, 28), 0)
    rounds = [s.metrics for s in fedquilt_run(method_of(config, federation), federation, rounds=2, engine=Local())]
    series = read(run([*QUICK, "-gr", "2"])[0])[0]
    for name, key in (("rs_bytes_down", "bytes_down"), ("rs_bytes_up", "bytes_up"), ("rs_raw_bytes_up", "raw_up")):
        assert series[name].tolist() == [metrics[key] for metrics in rounds]
    said = capsys.readouterr().out
    down, up = (sum(m[key] for m in rounds) / 1e6 for key in ("bytes_down", "bytes_up"))
    assert f"round 0: sent {rounds[0]['bytes_down'] / 1e6:.3f} MB down, " in said
    assert f"2 rounds sent {down:.3f} MB down, {up:.3f} MB up" in said


def test_tuning_only_before_a_score(place):
    """FedBABU's tuning is a second exchange to everybody: with -eg 3 it is made before the scores of rounds 3 and 6."""
    down = read(run([*QUICK, "-gr", "6", "-eg", "3", "-algo", "FedBABU", "-fte", "1"])[0])[0]["rs_bytes_down"]
    plain = down.min()
    assert [round(float(d / plain)) for d in down] == [1, 1, 2, 1, 1, 2]


def test_fedamp_with_pfllibs_defaults(tmp_path, monkeypatch, capsys):
    """alphaK = sigma = 1 and 20 clients that are almost alike: the others' weights would sum to 19."""
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "dataset", clients=20, rows=8)
    words = ["-dev", "cpu", "-m", "DNN", "--engine", "local", "-algo", "FedAMP", "-gr", "3"]
    assert np.isfinite(read(run(words)[0])[0]["rs_train_loss"]).all()
    assert "alpha 1 is above sigma / 19" in capsys.readouterr().out


def test_one_start_for_all(place):
    """As in PFLlib, unless asked otherwise: before the first round every client has the same model."""
    scores = {}
    for words in ([], ["--shared_start", "False"]):
        asked = parsed([*QUICK, "-algo", "Local", *words])
        federation, _ = federations(asked, folder_of(asked))
        side = ClientSide(method_of(play.settings(asked, (1, 28, 28), 0), federation), federation, Seed(0))
        first, second = (side.first_slot(client).state.private["head.weight"] for client in (0, 1))
        assert bool((first == second).all()) is (words == [])
        scores[bool(words)] = read(run([*QUICK, "-algo", "Local", "-gr", "0", *words])[0])[0]["rs_train_loss"][0]
    assert scores[True] != scores[False]


def test_few_shots(place):
    """The first two rows of each class in the file; test samples stay."""
    whole, few = (federations(parsed([*QUICK, *words]), place / "dataset" / "MNIST")[0] for words in ([], ["-fs", "2"]))
    for client in few.ids:
        rows, labels = whole.train[client].tolist(), whole.labels(client).tolist()
        wanted = [row for i, row in enumerate(rows) if labels[:i].count(labels[i]) < 2]
        assert few.train[client].tolist() == wanted
        assert len(wanted) == 6
        assert few.evaluation(client, "test").whole().y.equal(whole.evaluation(client, "test").whole().y)
    run([*QUICK, "-gr", "1", "-fs", "2"])


@pytest.mark.parametrize("form", ["columns", "pairs"])
def test_texts(tmp_path, monkeypatch, form):
    """PFLlib keeps (token ids, length): in an array of two columns, or in a list of pairs."""
    monkeypatch.chdir(tmp_path)
    folder, rng = tmp_path / "dataset" / "AGNews", np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for client in range(2):
            y = np.arange(8) % 2
            pairs = [([int(v) for v in rng.integers(1, 50, 12) + 50 * label], 12) for label in y]
            x = np.array(pairs, dtype=object) if form == "columns" else pairs
            np.savez_compressed(folder / part / f"{client}.npz", data={"x": x, "y": y})
    words = ["-data", "AGNews", "-dev", "cpu", "-nc", "2", "-m", "TextCNN", "-fd", "8", "-gr", "2", "--engine", "local"]
    (path,) = run([*words, "-vs", "100", "-ml", "12"])
    assert np.isfinite(read(path)[0]["rs_train_loss"]).all()
    with pytest.raises(InputError, match="-ml 200: the texts of AGNews have 12 tokens"):
        run([*words, "-vs", "100", "-ml", "200"])
    with pytest.raises(InputError, match="vocab is 80"):  # PFLlib's default
        run(words)


def test_the_joint_search_can_be_asked_for():
    asked = parsed(["-uhg", "-ugc", "--search", "joint"])
    settings = {"kind": "hgls", "base": "fedavg", "search": "joint", "gradient_codec": "hgc", "num_bins": 16}
    assert method_settings(asked) == settings
    assert variant_of(asked) == "FedAvg-HGLSjoint-HGC16"
    for words in (["--search", "joint"], ["-uhg", "--as_coded", "--search", "joint"]):
        with pytest.raises(InputError, match="--search"):
            parsed(words)
