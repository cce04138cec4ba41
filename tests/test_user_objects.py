"""What a user's pair loss, set or miner may answer, and that it is named where it may not."""

from __future__ import annotations

import math

import pytest
import torch

import drometric as dm
from drometric.engine.plan import planned
from drometric.mining import Mined
from drometric.uncertainty import WorstCase

X = torch.randn(18, 4, generator=torch.Generator().manual_seed(4))  # 153 pairs
LABELS = torch.arange(18) % 5


class Fixed:
    """A user's set that returns what it was told to."""

    def __init__(self, make):
        self.worst_case = make


@pytest.mark.parametrize(
    "answer",
    [
        lambda pairs: WorstCase(pairs.loss.mean(), pairs.loss[:-1]),
        lambda pairs: WorstCase(pairs.loss, pairs.loss),
        lambda pairs: WorstCase(pairs.loss.mean(), pairs.loss[:, None]),
        lambda pairs: WorstCase(pairs.loss.mean(), pairs.loss.mean()),
        lambda pairs: WorstCase(1.0, pairs.loss.numpy()),
        lambda pairs: pairs.loss.mean(),
        lambda pairs: None,
    ],
)
def test_a_set_that_answers_in_the_wrong_shape_is_named(answer):
    wanted = r"^Fixed.worst_case must return WorstCase\(value, weight\), .* per pair \(153\); got "
    with pytest.raises(ValueError, match=wanted):
        dm.RobustPairLoss(dm.Margin(), Fixed(answer))(X, LABELS)


def test_a_set_may_answer_in_float32():
    def uniform(pairs):
        return WorstCase(pairs.loss.float().mean(), torch.full((len(pairs),), 1 / len(pairs)))

    wanted = dm.RobustPairLoss(dm.Margin(), dm.Uniform())(X, LABELS)
    value = dm.RobustPairLoss(dm.Margin(), Fixed(uniform))(X, LABELS)
    torch.testing.assert_close(value, wanted)


def test_a_pair_loss_may_answer_in_float32():
    class Single(dm.Margin):
        def negative(self, similarity):
            return tuple(x.float() for x in super().negative(similarity))

    for of in (
        lambda pair_loss: dm.RobustPairLoss(pair_loss, dm.Uniform()),
        lambda pair_loss: dm.MinedPairLoss(pair_loss, dm.ThresholdMiner()),
    ):
        torch.testing.assert_close(of(Single())(X, LABELS), of(dm.Margin())(X, LABELS))


@pytest.mark.parametrize("path", ["plain", "dense", "tiles"])
@pytest.mark.parametrize("answer", [lambda s: s, lambda s: (s[:-1], s), lambda s: (s.sum(), s)])
def test_a_pair_loss_that_answers_in_the_wrong_shape_is_named(answer, path):
    class Odd(dm.Margin):
        def negative(self, similarity):
            return answer(similarity)

    wanted = r"^Odd\.negative must return .*; got "
    for loss in (
        dm.RobustPairLoss(Odd(), dm.Uniform()),
        dm.MinedPairLoss(Odd(), dm.ThresholdMiner()),
    ):
        with planned(path=path), pytest.raises(ValueError, match=wanted):
            loss(X, LABELS)


def test_a_pair_loss_may_return_any_dtype():
    class Step:
        """A hinge whose author returned the slope as it came: a boolean tensor."""

        def positive(self, similarity):
            return (1 - similarity).clamp(min=0).float(), -(similarity < 1).int()

        def negative(self, similarity):
            return (similarity - 0.5).clamp(min=0), similarity > 0.5

    results = []
    for pair_loss in (Step(), dm.Contrastive()):
        x = X.clone().requires_grad_()
        dm.RobustPairLoss(pair_loss, dm.Uniform())(x, LABELS).backward()
        results.append(x.grad)
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("zero_loss", ["keep", "drop"])
def test_a_pair_loss_that_is_not_finite_is_named(bad, zero_loss):
    class Bad(dm.Margin):
        def positive(self, similarity):
            return similarity * bad, similarity

    for uncertainty in (dm.TopK(k=3), dm.KL(), dm.ChiSquare(1.0)):
        with pytest.raises(ValueError, match=r"^Bad must return finite losses and slopes"):
            dm.RobustPairLoss(Bad(), uncertainty, zero_loss=zero_loss)(X, LABELS)


def test_a_pair_loss_is_not_asked_about_a_sign_that_is_absent():
    class Relative(dm.Margin):
        def negative(self, similarity):
            return similarity / similarity.max(), similarity  # an error where there are none

    loss = dm.RobustPairLoss(Relative(), dm.Uniform())
    assert loss(X, torch.zeros_like(LABELS)).isfinite()


@pytest.mark.parametrize(
    "answer",
    [
        lambda p, n: None,
        lambda p, n: Mined(1, 2),
        lambda p, n: Mined(p[:-1], n),
        lambda p, n: Mined(-p, n),
        lambda p, n: Mined(p * math.nan, n),
        lambda p, n: Mined(n, p),
        lambda p, n: Mined(torch.eye(len(p)), n),
    ],
)
def test_a_miner_that_answers_nonsense_is_named(answer):
    class Odd:
        def mine(self, batch):
            return answer(batch.positive.double(), batch.negative.double())

    for loss in (dm.MinedPairLoss(dm.Margin(), Odd()), dm.MultiSimilarity(miner=Odd())):
        with pytest.raises(ValueError, match=r"^Odd\.mine must "):
            loss(X, LABELS)
