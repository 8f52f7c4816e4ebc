"""Data sets from the Hugging Face hub, through its package ``datasets`` (extra hf), kept as NAME.npz."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.sizes import checked_image
from fedquilt.data.sources.catalogue import DatasetEntry, Hub
from fedquilt.errors import DownloadError, InputError


def loaded(load_dataset: Callable[..., Any], *which: str | None) -> Any:
    """What the package gives for a name; never by running code that somebody put there (newer versions cannot)."""
    can_run = "trust_remote_code" in inspect.signature(load_dataset).parameters
    return load_dataset(*which, **({"trust_remote_code": False} if can_run else {}))


def from_hub(entry: DatasetEntry, path: Path) -> Path:
    """Fetch the images of a data set and write them as ``path``, whole or not at all."""
    hub = entry.hub
    if hub is None or not hub.image:
        known = f" It is there as {hub.id}, but in another form." if hub else ""
        raise InputError(f"{entry.name} is not taken from the Hugging Face hub.{known} Leave --via hf out.")
    try:
        import datasets
    except ImportError as error:
        raise InputError('--via hf needs the package datasets. Install it: pip install "fedquilt[hf]".') from error
    try:
        splits = loaded(datasets.load_dataset, hub.id, hub.subset)
    except Exception as error:  # that package raises whatever its network layers do
        raise DownloadError(
            f"{entry.name} could not be downloaded from huggingface.co/datasets/{hub.id}: {error}. Check the "
            "connection and "
            "try again."
        ) from error
    arrays = _columns(splits[hub.train], hub, "train") | (_columns(splits[hub.test], hub, "test") if hub.test else {})
    _save(path, arrays)
    return path


def _columns(rows: Any, hub: Hub, part: str) -> dict[str, Array]:
    mode = "RGB" if hub.colour else "L"
    images = (checked_image(image, hub.id) for image in rows[hub.image])
    x = np.stack([np.asarray(image.convert(mode), np.uint8) for image in images])
    found: dict[str, Array] = {f"x_{part}": x, f"y_{part}": np.asarray(rows[hub.label], np.int64)}
    if hub.user:
        found[f"user_{part}"] = np.asarray(rows[hub.user])
    return found


def _save(path: Path, arrays: dict[str, Array]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".npz", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as sink:
            np.savez(sink, **cast(dict[str, Any], arrays))
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
