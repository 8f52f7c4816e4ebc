"""A real node with a good key, whose answers are changed before Flower gets them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from fedquilt.deploy.apps import answering
from fedquilt.deploy.flower_command import environment
from fedquilt.deploy.join import Membership
from fedquilt.deploy.site import SiteSettings
from fedquilt.engines.flower.resident import PLACE, stay
from helpers.deployed import Sites
from helpers.tampering import Frames, Tamper


class Liar:
    """Flower's SuperNode, and in this process the resident that answers for it.

    Args:
        sites: Where the node belongs.
        name: The site it says it is.
        lies: What becomes of its answers, round by round; None sends the first answer once more.
    """

    def __init__(self, sites: Sites, name: str, lies: Sequence[Tamper | None]) -> None:
        self.sites, self.name, self.lies = sites, name, list(lies)
        self._first: Frames = {}

    def __enter__(self) -> Liar:
        state = self.sites.folder / f"state-malicious client-{self.name}"
        state.mkdir()
        data = str(self.sites.folder / f"{self.name}.npz")
        settings = SiteSettings(data=data, user="user", state=str(state), classes=10)
        settings.write(state / "site.toml")
        self._honest = answering(state / "site.toml")
        threading.Thread(target=stay, args=(state, self._answer, os.getppid()), daemon=True).start()
        while not (state / PLACE).exists():
            time.sleep(0.01)
        member = Membership(self.sites.address, settings, self.sites.keys.ca, self.sites.keys.node(self.name))
        self.sites.start(self.name, member.command(), environment(state / "flower"))
        return self

    def __exit__(self, *exception: object) -> None:
        self.sites.kill(self.name)

    def _answer(self, kind: str, frames: Frames) -> Frames:
        answer = self._honest(kind, frames)
        if not kind.startswith("train.") or not self.lies:
            return answer
        self._first = self._first or answer
        lie = self.lies.pop(0)
        return self._first if lie is None else lie(answer)
