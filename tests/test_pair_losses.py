"""The pair losses by themselves: slopes are derivatives, kinks are flat, digits are kept."""

import math

import pytest
import torch

from drometric import Binomial, Contrastive, Margin
from drometric.pair_losses import PairLoss

PAIR_LOSSES = [Margin(), Margin(0.0, -0.3), Binomial(), Binomial(7.0, 3.0, 0.1), Contrastive(0.2)]
SIMILARITIES = torch.linspace(-0.999, 0.999, 402, dtype=torch.float64)  # no kink among them


@pytest.mark.parametrize("pair_loss", PAIR_LOSSES, ids=str)
@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_slopes_are_derivatives(pair_loss: PairLoss, sign: str) -> None:
    step = 1e-6
    of_sign = getattr(pair_loss, sign)
    rise = of_sign(SIMILARITIES + step)[0] - of_sign(SIMILARITIES - step)[0]
    torch.testing.assert_close(of_sign(SIMILARITIES)[1], rise / (2 * step), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("pair_loss", PAIR_LOSSES, ids=str)
def test_losses_are_monotone_and_never_negative(pair_loss: PairLoss) -> None:
    positive, negative = pair_loss.positive(SIMILARITIES), pair_loss.negative(SIMILARITIES)
    assert (positive[1] <= 0).all()
    assert (negative[1] >= 0).all()
    assert (torch.stack([positive[0], negative[0]]) >= 0).all()


def test_kinks_are_flat() -> None:
    margin, contrastive = Margin(margin=0.25, threshold=0.5), Contrastive(threshold=0.5)
    for of_sign, kink in (
        (margin.positive, 0.75),
        (margin.negative, 0.25),
        (contrastive.positive, 1.0),
        (contrastive.negative, 0.5),
    ):
        loss, slope = of_sign(torch.tensor([kink], dtype=torch.float64))
        assert float(loss) == float(slope) == 0.0


def test_binomial_is_accurate_far_from_its_threshold() -> None:
    # 2/α log(1 + e^{α(s - λ)}): tiny on one side, where log1p keeps its digits, and else linear.
    loss, slope = Binomial(threshold=0.0).negative(torch.tensor([-1.0, 1.0]).double())
    assert loss.tolist() == pytest.approx([math.exp(-40) / 20, 2.0], rel=1e-14)
    assert slope.tolist() == pytest.approx([2 * math.exp(-40), 2.0], rel=1e-14)


@pytest.mark.parametrize("scale", [1e3, 1e8])
def test_binomial_does_not_overflow(scale: float) -> None:
    for loss, slope in (
        Binomial(scale, scale).positive(SIMILARITIES),
        Binomial(scale, scale).negative(SIMILARITIES),
    ):
        assert (loss.isfinite() & slope.isfinite()).all()
