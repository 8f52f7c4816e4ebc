"""Clients that are sent the same read it once; one that writes into it spoils it for nobody."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.rounds.client import ClientSide
from fedquilt.rounds.rounds import Rounds
from helpers.sabotage import Wraps
from helpers.toy import fedavg, points

TOY = points(10, 30, 20)


@dataclass(frozen=True, kw_only=True)
class Scribbling(Wraps):
    """The base, but clients write zeros into what they were sent once they are done with it, or put others there."""

    base: object
    how: str

    def exchanges(self):
        return tuple(replace(e, work=_Scribble(e.work, self.how)) for e in self.base.exchanges())


@dataclass(frozen=True)
class _Scribble:
    work: object
    how: str

    def __call__(self, download, client, site, context):
        found = self.work(download, client, site, context)
        for name, tensor in download.shared.items():
            if self.how == "in place":
                tensor.zero_()
            else:
                download.shared[name] = torch.zeros_like(tensor)
        return found


def played(method):
    rounds = Rounds(method, TOY, Local(), Seed(0))
    rounds.play()
    return rounds.digest()


def test_equal_frames_are_read_once(monkeypatch):
    read = []
    kept = ClientSide._sent
    monkeypatch.setattr(ClientSide, "_sent", lambda *args: read.append(kept(*args)) or read[-1])
    played(fedavg())
    assert len(read) == 3
    assert read[0] is read[1] is read[2]


@pytest.mark.parametrize("how", ["in place", "others"])
def test_what_a_client_writes_into_its_download_stays_there(how):
    assert played(Scribbling(base=fedavg(), how=how)) == played(fedavg())
