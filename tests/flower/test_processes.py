"""Real processes, TLS and node keys: the same digest as on the local engine, also after kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedquilt.deploy.serve import Server, _Link
from helpers.deployed import Sites, at_home, ready, recipe, server

pytestmark = pytest.mark.flower


class Standing:
    """A SuperLink and two sites that serve several runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address, self.keys = ready(folder)
        first = server(folder / "link", self.address, self.keys)
        first._connection()
        self.link = _Link(first)
        self.link.revive()
        self.sites = Sites(folder, self.address, self.keys)
        for site in ("bergen", "oslo"):
            self.sites.join(site)

    def server(self, name: str) -> Server:
        """The server of one more run."""
        return server(self.folder / name, self.address, self.keys, attach=True)

    def close(self) -> None:
        """Nodes first, then the SuperLink."""
        self.sites.close()
        self.link.end()


@pytest.fixture(scope="module")
def standing(tmp_path_factory) -> Iterator[Standing]:
    made = Standing(tmp_path_factory.mktemp("federation"))
    yield made
    made.close()


@pytest.mark.parametrize("method", ["fedavg", "fedper", "scaffold"])
@pytest.mark.timeout(300)
def test_a_real_federation_gives_the_numbers_of_local(standing, method):
    config = recipe(method)
    heard = []
    result = standing.server(method).follow(config, lambda n, m: heard.append(n), print)
    assert result["digest"] == at_home(config)
    assert heard == [1, 2]
    assert result["quarantined"] == 0
