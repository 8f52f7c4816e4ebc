"""Keys whose server certificate has expired."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from fedquilt.deploy import keys as module
from fedquilt.deploy.keys import Keys, make


def expired(folder: Path, nodes: Sequence[str]) -> Keys:
    """A key folder as it was made two years ago: its CA is still good, its server's certificate is not."""
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=730)
    clock = SimpleNamespace(now=lambda zone: then)
    past = SimpleNamespace(datetime=clock, timedelta=datetime.timedelta, UTC=datetime.UTC)
    with patch.object(module, "datetime", past):
        make(folder, ["localhost"], nodes)
    return Keys(folder)
