"""What is said about a pretrained autoencoder: card.json, README.md, and a picture of what it makes of images."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from matplotlib import image

from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.models.masked.masking import pictures
from fedquilt.storage.files import storage, to_json, write_atomic

CARD, TEXT, PICTURE = "card.json", "README.md", "reconstructions.png"


@dataclass(frozen=True)
class Facts:
    """About one pretraining.

    Args:
        identity: A hash of model, data and settings.
        model: Arguments of the autoencoder.
        data: Which rows: the source, and the share set aside by the seed.
        rows, valid: How many images it was trained and scored on.
        training: How it was trained.
        curve: Training and validation loss after each epoch.
        seconds: That it took.
        sha256: Of the file of weights.
    """

    identity: str
    model: Row
    data: Row
    rows: int
    valid: int
    training: Row
    curve: tuple[tuple[float, float | None], ...]
    seconds: float
    sha256: str = ""

    @staticmethod
    def read(folder: Path) -> Facts | None:
        """Those of a finished pretraining, if the weights are the ones they speak of."""
        try:
            found = Facts(**json.loads((folder / CARD).read_text(encoding="utf-8")))
            weights = (folder / "model.safetensors").read_bytes()
        except (OSError, ValueError, TypeError):
            return None
        return found if hashlib.sha256(weights).hexdigest() == found.sha256 else None


def write_card(out: Path, facts: Facts, net: Net, params: Params, table: Table) -> Facts:
    """Write card, text and picture; the facts with the hash of the weights."""
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    whole = replace(facts, sha256=digest)
    _draw(out / PICTURE, net, params, table)
    write_atomic(out / TEXT, _text(out, whole).encode())
    write_atomic(out / CARD, to_json(asdict(whole), indent=2).encode())
    return whole


def _text(out: Path, facts: Facts) -> str:
    model = ", ".join(f"{n} {v}" for n, v in facts.model.items() if v is not None)
    training = ", ".join(f"{n} {v}" for n, v in facts.training.items())
    data = ", ".join(f"{n} {v}" for n, v in facts.data.items())
    curve = "\n".join(
        f"| {i} | {a:.4f} | {'' if b is None or b != b else f'{b:.4f}'} |" for i, (a, b) in enumerate(facts.curve, 1)
    )
    return f"""# A masked autoencoder

Pretrained with `fedquilt pretrain-mae` on {facts.rows} images, without labels. In a recipe:

```toml
[model]
kind = "mae"
pretrained = "{out.name}"
```

- **Model**: {model}.
- **Data**: {data}. The share `pretraining` of the training samples was set aside by the seed; a recipe with the same
  `pretraining` and `seed` under `[data]` gives its clients the other rows. {facts.valid} of the images only scored it.
- **Training**: {training}; {facts.seconds:.0f} s.
- **sha256** of model.safetensors: `{facts.sha256}`

![Images, what the model sees of them, and what it makes of it]({PICTURE})

| epoch | training loss | validation loss |
|---|---|---|
{curve}
"""


def _draw(path: Path, net: Net, params: Params, table: Table, count: int = 8) -> None:
    batch = table.rows(table.all_rows()[:count])
    patches, patch, norm = (net.trait(n) for n in ("patches", "patch", "norm_pixels"))
    noise = torch.rand(len(batch), patches, generator=Seed(0).fold("picture").torch())
    with torch.no_grad():
        found = net.ask(params, "forward", batch.x, noise)
    rows = pictures(found, batch.x, patch, norm)
    low, high = (float(v) for v in (batch.x.min(), batch.x.max()))
    stacked = torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)  # [C, 3 H, count W]
    shown = ((stacked - low) / max(high - low, 1e-9)).clamp(0, 1).permute(1, 2, 0).numpy()
    big = shown.repeat(4, axis=0).repeat(4, axis=1)
    with storage(path.parent):
        image.imsave(path, big if big.shape[2] == 3 else big.mean(2), cmap="gray", vmin=0.0, vmax=1.0)
