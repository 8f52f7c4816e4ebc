"""Models made of transformers' leave a run as folders that from_pretrained loads, and as ONNX."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedquilt
from fedquilt.config.config import Config
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.runs.build import run_of

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "not", "film"]
TINY_BERT = {
    "vocab_size": 10,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 12,
    "pad_token_id": 0,
}
TINY_MAE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}


def played(folder: Path, data: dict[str, Any], **settings: Any) -> Path:
    given = {"rounds": 1, "data": {"clients": 3, "partition": {"kind": "iid"}, **data}, **settings}
    for _ in run_of(Config.model_validate(given), Local(), folder):
        pass
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT drawn at random, with its pooler and a tokeniser of ten words."""
    place = tmp_path_factory.mktemp("encoder")
    transformers.utils.logging.disable_progress_bar()
    with Seed(0).ambient():
        transformers.BertModel(transformers.BertConfig(**TINY_BERT)).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizer(vocab=str(place / "vocab.txt")).save_pretrained(place)
    return place


@pytest.fixture(scope="module", params=[True, False], ids=["frozen", "trained"])
def texts(request: pytest.FixtureRequest, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on texts with the encoder's own tokeniser."""
    base, draw = tmp_path_factory.mktemp("texts"), Seed(0).numpy()
    with (base / "own.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for label in draw.integers(2, size=90):
            writer.writerow((f"{' '.join(draw.choice(['very', 'film'], size=3))} {('bad', 'good')[label]}", label))
    data = {"path": str(base / "own.csv"), "text": "text", "tokeniser": str(encoder), "length": 8}
    model = {"kind": "text_encoder", "folder": str(encoder), "frozen": request.param}
    return played(base / "run", data, model=model, train={"optimizer": {"kind": "sgd", "lr": 0.1}})


def test_an_encoder_leaves_as_a_folder_of_transformers(texts: Path, encoder: Path, tmp_path: Path) -> None:
    """from_pretrained finds every tensor, the pooler included; with the head beside it, scores are ours."""
    made = fedquilt.export_model(texts, tmp_path / "folder", format="hf")
    loaded, info = transformers.AutoModel.from_pretrained(made.path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    before = transformers.AutoModel.from_pretrained(encoder).state_dict()
    frozen = all(torch.equal(t, before[n]) for n, t in loaded.state_dict().items())
    assert frozen == ("frozen = true" in (texts / "config.toml").read_text())
    tokeniser = transformers.AutoTokenizer.from_pretrained(made.path)
    ids = tokeniser(["very good film", "bad"], padding="max_length", max_length=8, return_tensors="pt")["input_ids"]
    head, mask = load_file(made.path / "head.safetensors"), (ids != 0).unsqueeze(-1).float()
    ours = fedquilt.load_model(texts)
    with torch.inference_mode():
        states = loaded.eval()(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        pooled = (states * mask).sum(1) / mask.sum(1)
        assert torch.allclose(pooled @ head["weight"].T + head["bias"], ours(ids), atol=1e-6)
    card = (made.path / "README.md").read_text()
    assert "AutoModel.from_pretrained" in card
    assert f"the first 8 ids of {encoder}" in card


def test_raw_texts_are_answered_with_the_encoders_tokeniser(texts: Path, encoder: Path) -> None:
    found = fedquilt.predict(texts, ["very good film", "bad"])
    ours = fedquilt.load_model(texts)
    with torch.inference_mode():
        ids = torch.from_numpy(fedquilt.models.tokenise(["very good film", "bad"], str(encoder), 8))
        assert torch.allclose(found.probabilities, ours(ids).softmax(1), atol=1e-6)


def test_an_encoder_leaves_as_onnx(texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert fedquilt.export_model(texts, tmp_path / "a.onnx").difference < 1e-5


@pytest.mark.parametrize("adapter", ["low_rank", "bottleneck", "none"])
def test_a_masked_autoencoder_leaves_as_a_folder(adapter: str, tmp_path: Path) -> None:
    """Low-rank changes are in its layers; bottlenecks stand beside it, and without any it is the same to the bit."""
    transformers.utils.logging.disable_progress_bar()
    with Seed(0).ambient():
        transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**TINY_MAE)).save_pretrained(tmp_path / "start")
    model = {"kind": "hf_mae", "folder": str(tmp_path / "start"), "adapter": adapter}
    model |= {"low_rank": {"rank": 2}, "bottleneck": {"bottleneck": 4}, "none": {}}[adapter]
    folder = played(tmp_path / "run", {"limit": 60}, model=model, method={"kind": "fedmae"})
    made = fedquilt.export_model(folder, tmp_path / "hf", format="hf")
    loaded = transformers.ViTMAEForPreTraining.from_pretrained(made.path).eval()
    ours = fedquilt.load_model(folder)
    images = torch.rand(2, 1, 8, 8, generator=Seed(1).torch())
    noise = torch.rand(2, 4, generator=Seed(2).torch())
    with torch.inference_mode():
        theirs, mine = loaded(images, noise=noise).logits, ours(images, noise).prediction
        assert torch.allclose(theirs, mine, atol=1e-5) == (adapter != "bottleneck")
    assert (made.path / "adapters.safetensors").exists() == (adapter == "bottleneck")
    if adapter == "low_rank":
        start = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "start").state_dict()
        assert any(not torch.equal(t, start[n]) for n, t in loaded.state_dict().items())
    with pytest.raises(InputError, match=r"learns features, not classes\. Compute them with load_model"):
        fedquilt.predict(folder, np.zeros((1, 1, 8, 8), np.float32))
