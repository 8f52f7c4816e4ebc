"""A Flower app folder: what ``flwr run`` takes. It holds a recipe and two names; all code is in this library."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

from fedquilt.config.config import Config, dump
from fedquilt.errors import InputError
from fedquilt.storage.code import write_code
from fedquilt.storage.files import write_atomic

_PROJECT = """\
# A Flower app made by `fedquilt export`. Run it with `flwr run`; change recipe.toml to change the run.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A fedquilt run"
license = "Apache-2.0"
dependencies = ["fedquilt[flower]>={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedquilt"

[tool.flwr.app.components]
serverapp = "fedquilt_app:server"
clientapp = "fedquilt_app:client"

[tool.flwr.app.config]
folder = {folder}
"""

_APP = '''\
"""The two halves of a federation. What they do is in recipe.toml and in each site's own settings."""

from pathlib import Path

from fedquilt.deploy.apps import client_app, server_app

server = server_app(Path(__file__).parent / "recipe.toml")
client = client_app()
'''


def export(config: Config, place: Path, folder: Path | None = None) -> list[Path]:
    """Write the app folder of a recipe; ``folder`` is where the server will keep the run."""
    ours = (place / "fedquilt_app.py").exists()
    if place.exists() and (not place.is_dir() or (any(place.iterdir()) and not ours)):
        raise InputError(f"'{place}' holds something else. Name a new folder.")
    target = folder if folder is not None else Path(config.output.folder).absolute() / config.folder_name
    content = {
        "pyproject.toml": _PROJECT.format(
            name=_app_name(config.name), folder=_quoted(target.absolute()), version=_version()
        ),
        "fedquilt_app.py": _APP,
        "recipe.toml": dump(config),
        ".gitignore": "__pycache__/\n",
    }
    for name, text in content.items():
        write_atomic(place / name, text.encode())
    write_code(place, config.model_dump())
    return [place / name for name in content]


def _app_name(name: str) -> str:
    """A run's name as Flower takes it: small letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "fedquilt-run"


def _quoted(place: Path) -> str:
    return json.dumps(str(place), ensure_ascii=False)


def _version() -> str:
    try:
        return metadata.version("fedquilt")
    except metadata.PackageNotFoundError:  # run from its sources
        return "0"
