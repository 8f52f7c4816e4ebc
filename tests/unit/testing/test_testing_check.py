"""``check`` finds what a method does wrong, and nothing in those that do nothing wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from fedquilt import Net, OnBase, check
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.personalised.hgls import HGLS
from fedquilt.models import MLP
from helpers.toy import fedavg, points

CALLS: list[int] = []


@dataclass(frozen=True)
class Wrong(OnBase):
    """Does one thing it must not do."""

    base: Any
    what: str

    def exchanges(self) -> Any:
        (train,) = self.base.exchanges()
        return (replace(train, work=replace(train.work, start=self.start, finish=self.finish), up=self.up),)

    def start(self, download: Any, client: Any, site: Any, context: Any) -> Any:
        if self.what == "download":
            download.shared["bias"].add_(1)
        return self.base.start(download, client, site, context)

    def finish(self, job: Any, trained: Any, client: Any, site: Any, context: Any) -> Any:
        if self.what == "job":
            job.params["bias"].zero_()
        before = client
        client, upload = self.base.finish(job, trained, client, site, context)
        if self.what == "client":
            before.private["extra"] = trained.params["bias"]
        if self.what == "memory":
            CALLS.append(1)
            upload = replace(upload, delta={n: t * len(CALLS) for n, t in upload.delta.items()})
        return client, upload

    def up(self, state: Any, replies: Any, context: Any) -> Any:
        if self.what == "state":
            state.shared["bias"].add_(1)
        return self.base.up(state, replies, context)


def test_nothing_is_wrong_with_good_methods() -> None:
    split = Net.of(MLP, features=2, classes=2, hidden=(3,))
    for method in (fedavg(), LocalOnly(fedavg().net), HGLS(base=fedavg(objective=split))):
        assert check(method, points(6, 9), workers=False) == []
    assert check(fedavg(), points(6, 9)) == []


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("download", "exchange 'train', start changes its argument 'download'"),
        ("client", "exchange 'train', finish changes its argument 'client state'"),
        ("job", "exchange 'train', finish changes its argument 'job'"),
        ("state", "exchange 'train', up changes its argument 'state'"),
        ("memory", "Two runs with one seed differ"),
    ],
)
def test_what_is_wrong_is_found(what: str, told: str) -> None:
    assert any(told in problem for problem in check(Wrong(fedavg(), what), points(6, 9), workers=False))


@dataclass
class Loose(OnBase):
    """A dataclass that can change."""

    base: Any


def test_a_dataclass_that_can_change_is_refused() -> None:
    assert any("frozen=True" in problem for problem in check(Loose(fedavg()), points(6, 9), workers=False))
