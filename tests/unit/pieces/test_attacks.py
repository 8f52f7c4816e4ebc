"""What attackers send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.pieces.robust import attacks


def changes(n: int, seed: int = 0) -> list[Params]:
    draw = torch.Generator().manual_seed(seed)
    return [
        {
            "a.weight": torch.randn(3, 2, generator=draw),
            "a.running_mean": torch.randn(2, generator=draw),
            "a.num_batches_tracked": torch.tensor(i),
        }
        for i in range(n)
    ]


def flat(change: Params) -> np.ndarray:
    return change["a.weight"].double().numpy().ravel()


ALL: dict[str, Any] = {
    "sign_flip": attacks.sign_flip(2.0),
    "scaling": attacks.scaling(3.0),
    "gaussian": attacks.gaussian(),
    "alie": attacks.alie(),
    "ipm": attacks.ipm(),
    "min_max": attacks.min_max(),
    "mimic": attacks.mimic(1),
    "adaptive": attacks.adaptive(merge=lambda c: c[0]),
}


@pytest.mark.parametrize("name", ALL)
def test_only_weights_are_forged_and_nothing_is_changed_in_place(name: str) -> None:
    own, honest = changes(2), changes(5, 1)
    before = [{n: t.clone() for n, t in c.items()} for c in (*own, *honest)]
    lies = ALL[name](own, honest, Seed(0))
    assert len(lies) == 2
    for lie, true in zip(lies, own, strict=True):
        assert lie.keys() == true.keys()
        assert {n: t.dtype for n, t in lie.items()} == {n: t.dtype for n, t in true.items()}
        assert torch.equal(lie["a.running_mean"], true["a.running_mean"])
        assert torch.equal(lie["a.num_batches_tracked"], true["a.num_batches_tracked"])
        assert not torch.equal(lie["a.weight"], true["a.weight"])
    for kept, now in zip(before, (*own, *honest), strict=True):
        assert all(torch.equal(kept[n], now[n]) for n in kept)


def test_formulas() -> None:
    own, honest = changes(2), changes(6, 1)
    x = np.stack([flat(h) for h in honest])
    mean, deviation = x.mean(0), x.std(0, ddof=1)

    def of(attack: Any) -> np.ndarray:
        return flat(attack(own, honest, Seed(0))[0])

    np.testing.assert_allclose(of(attacks.sign_flip(10.0)), -10 * flat(own[0]), rtol=1e-6)
    np.testing.assert_allclose(of(attacks.scaling(10.0)), 10 * flat(own[0]), rtol=1e-6)
    np.testing.assert_allclose(of(attacks.ipm(0.5)), -0.5 * mean, rtol=1e-5)
    np.testing.assert_allclose(of(attacks.alie(1.5)), mean - 1.5 * deviation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of(attacks.mimic(2)), x[2], rtol=1e-6)


def test_alie_goes_as_far_as_the_majority_allows() -> None:
    """Of 8 clients with 2 attackers 3 honest ones must side with them, so Phi(z) = (6 - 3) / 6 and z is 0; of 9 with 3
    attackers two must, and Phi(z) = 4 / 6."""
    for honest, attackers, z in ((6, 2, 0.0), (6, 3, 0.4307)):
        clients = changes(honest, 1)
        x = np.stack([flat(h) for h in clients])
        lie = flat(attacks.alie()(changes(attackers), clients, Seed(0))[0])
        np.testing.assert_allclose(lie, x.mean(0) - z * x.std(0, ddof=1), rtol=1e-3, atol=1e-4)


def test_min_max_is_as_far_as_honest_clients_are_apart() -> None:
    honest = changes(6, 1)
    x, lie = np.stack([flat(h) for h in honest]), flat(attacks.min_max()(changes(1), honest, Seed(0))[0])
    apart = max(np.linalg.norm(a - b) for a in x for b in x)
    assert max(np.linalg.norm(lie - a) for a in x) == pytest.approx(apart, rel=1e-4)
    assert lie @ x.mean(0) < 0


def test_noise_is_as_long_as_asked_and_drawn_by_the_seed() -> None:
    own = [{"w": torch.ones(10_000)}]
    first, again, other = (attacks.gaussian(3.0)(own, own, Seed(s))[0]["w"] for s in (0, 0, 1))
    assert float(first.norm()) == pytest.approx(300, rel=0.05)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_adaptive_attackers_take_what_moves_the_rule_most() -> None:
    """Against a rule that shortens to 1, everything beyond is wasted; against the mean, the farthest is best."""

    def mean(found: Any) -> Params:
        return {"w": torch.stack([c["w"] for c in found]).mean(0)}

    def near(found: Any) -> Params:
        kept = [c["w"] for c in found if float(c["w"].norm()) < 2.0]
        return {"w": torch.stack(kept).mean(0)}

    honest = [{"w": torch.tensor([1.0, 0.0])} for _ in range(4)]
    own = [{"w": torch.tensor([1.0, 0.0])}]

    def sent(rule: Any) -> Tensor:
        return attacks.adaptive(attacks.sign_flip(1.0), rule)(own, honest, Seed(0))[0]["w"]

    torch.testing.assert_close(sent(mean), torch.tensor([1.0 - 8 * 2, 0.0]))
    torch.testing.assert_close(sent(near), torch.tensor([1.0 - 2, 0.0]))
