"""The losses that the framework recovers, each with its conditions, and that these are needed.

The gradients are equal; the values differ by constants, which are derived and tested too.
"""

from __future__ import annotations

import pytest
import torch
from eight_examples import LABELS, batch, value_and_gradient

import drometric as dm

PLENTY = 3.0  # as a margin it keeps every hinge open: similarities lie in [-1, 1]
LONELY = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])  # the last anchor has no positive


def gradient(loss, x, labels=LABELS, **how):
    return value_and_gradient(loss, x, labels, **how)[1]


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def assert_different(a, b):
    assert (a - b).abs().max() > 1e-4


def grouped(gamma, *, margin=PLENTY, threshold=0.5, negative=None, **how):
    """KL-G over the margin loss."""
    chosen = dm.PerAnchorKL(gamma, gamma if negative is None else negative, **how)
    return dm.RobustPairLoss(dm.Margin(margin, threshold), chosen)


def group_sizes(labels=LABELS):
    positives = (labels[:, None] == labels).sum(1).double() - 1
    return positives, len(labels) - 1 - positives


# ------------------------------------------------------------------ lifted structure


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_grouped_kl_at_gamma_one_is_lifted_structure(seed, reduction):
    x, margin = batch(seed), 2.5
    ours, by_ours = value_and_gradient(grouped(1.0, reduction=reduction), x)
    lifted = dm.LiftedStructure(margin, reduction=reduction)
    theirs, by_theirs = value_and_gradient(lifted, x)
    assert_same(by_ours, by_theirs)
    # Σ_P e^{m + λ - s} / P and Σ_N e^{m + s - λ} / N, against Σ_P e^{margin - s} and Σ_N e^s.
    positives, negatives = group_sizes()
    per_anchor = 2 * PLENTY - (positives * negatives).log() - margin
    expected = per_anchor.mean() if reduction == "mean" else per_anchor.sum()
    assert ours - theirs == pytest.approx(expected.item(), abs=1e-12)


def test_lifted_structure_needs_open_pair_hinges():
    x = batch()
    assert_different(gradient(grouped(1.0, margin=0.2), x), gradient(dm.LiftedStructure(2.5), x))


@pytest.mark.parametrize("gamma", [0.5, 0.99, 2.0])
def test_lifted_structure_needs_gamma_one(gamma):
    x = batch()
    assert_different(gradient(grouped(gamma), x), gradient(dm.LiftedStructure(2.5), x))


def test_lifted_structure_needs_its_own_hinge_open():
    x = batch()
    closed = gradient(dm.LiftedStructure(-20.0), x)
    assert not closed.any()
    some_closed = gradient(dm.LiftedStructure(-2.6), x)
    assert some_closed.any()
    for theirs in (closed, some_closed):
        assert_different(gradient(grouped(1.0), x), theirs)


def test_lifted_structure_drops_an_anchor_without_positives_and_grouped_kl_does_not():
    x = batch()
    ours = gradient(grouped(1.0, reduction="sum"), x, LONELY)
    theirs = gradient(dm.LiftedStructure(2.5, reduction="sum"), x, LONELY)
    assert_different(ours, theirs)
    # What is left over is exactly that anchor's other group.
    y = x.clone().requires_grad_()
    unit = torch.nn.functional.normalize(y, dim=1)
    (unit[:7] @ unit[7]).logsumexp(0).backward()
    assert_same(ours - theirs, y.grad)


# ------------------------------------------------------------------ multi-similarity


def two_thresholds(x, alpha, beta, of_positives, of_negatives, labels=LABELS):
    """MS with a threshold for each term: each with the pairs of the other sign ignored."""
    similar = labels[:, None] == labels
    parts = (
        value_and_gradient(dm.MultiSimilarity(alpha, beta, threshold), x, labels, ignore=ignored)
        for threshold, ignored in ((of_positives, ~similar), (of_negatives, similar))
    )
    return tuple(map(sum, zip(*parts, strict=True)))


def slack_constant(alpha, beta):
    """How much smaller the means inside KL-G are than the sums inside MS."""
    positives, negatives = group_sizes()
    return ((positives + 1).log() / alpha + (negatives + 1).log() / beta).mean().item()


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 50.0), (1.0, 1.0), (7.0, 3.0)])
@pytest.mark.parametrize("margin", [1.6, PLENTY])
def test_grouped_kl_with_slack_is_multi_similarity_with_two_thresholds(alpha, beta, margin):
    x, threshold = batch(), 0.5
    loss = grouped(1 / alpha, negative=1 / beta, margin=margin, slack=True)
    ours, by_ours = value_and_gradient(loss, x)
    theirs, by_theirs = two_thresholds(x, alpha, beta, threshold + margin, threshold - margin)
    assert_same(by_ours, by_theirs)
    assert theirs - ours == pytest.approx(slack_constant(alpha, beta), abs=1e-12)
    # The printed identity, with λ in both terms, is not true for m ≠ 0.
    single = gradient(dm.MultiSimilarity(alpha, beta, threshold), x)
    assert_different(by_ours, single)
    assert_same(two_thresholds(x, alpha, beta, threshold, threshold)[1], single)


def test_one_threshold_is_enough_where_the_margin_is_zero_and_no_hinge_clips():
    # That takes positives below the threshold and negatives above it: all pairs wrong.
    gram = torch.full((4, 4), 0.5, dtype=torch.float64).fill_diagonal_(1.0)
    labels = torch.tensor([0, 0, 1, 1])
    same = labels[:, None] == labels
    gram[same & ~torch.eye(4, dtype=torch.bool)] = 0.2
    gram[0, 2] = gram[2, 0] = 0.45
    x = torch.linalg.cholesky(gram)
    ours = gradient(grouped(0.5, negative=0.1, margin=0.0, threshold=0.4, slack=True), x, labels)
    assert_same(ours, gradient(dm.MultiSimilarity(2.0, 10.0, 0.4), x, labels))
    clipped = grouped(0.5, negative=0.1, margin=0.0, threshold=0.47, slack=True)
    assert_different(
        gradient(clipped, x, labels), gradient(dm.MultiSimilarity(2.0, 10.0, 0.47), x, labels)
    )


def test_multi_similarity_needs_open_hinges_and_slack():
    x = batch()
    clipped = gradient(grouped(0.5, negative=0.1, margin=0.2, slack=True), x)
    assert_different(clipped, two_thresholds(x, 2.0, 10.0, 0.7, 0.3)[1])
    without = gradient(grouped(0.5, negative=0.1, margin=1.6, slack=False), x)
    assert_different(without, two_thresholds(x, 2.0, 10.0, 2.1, -1.1)[1])


def test_multi_similarity_needs_no_anchor_to_have_both_signs():
    x = batch()
    ours = gradient(grouped(0.5, negative=0.1, margin=1.6, slack=True), x, LONELY)
    assert_same(ours, two_thresholds(x, 2.0, 10.0, 2.1, -1.1, LONELY)[1])


# ------------------------------------------------------------------ HAP2S_E


@pytest.mark.parametrize("gamma", [0.05, 0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_grouped_kl_is_hap2s_at_every_gamma(gamma, reduction):
    x = batch()
    ours = gradient(grouped(gamma, reduction=reduction), x)
    assert_same(ours, gradient(dm.HAP2S(gamma, margin=2.5, reduction=reduction), x))
    lifted = gradient(dm.LiftedStructure(4.0, reduction=reduction), x)
    if gamma == 1:
        assert_same(ours, lifted)
    else:
        assert_different(ours, lifted)


def test_hap2s_needs_open_hinges_both_signs_and_one_gamma():
    x = batch()
    theirs = gradient(dm.HAP2S(0.5, margin=2.5), x)
    assert_different(gradient(grouped(0.5, margin=0.2), x), theirs)
    assert_different(gradient(grouped(0.5, negative=0.3), x), theirs)
    assert_different(gradient(grouped(0.5), x), gradient(dm.HAP2S(0.5, margin=-0.3), x))
    assert_different(gradient(grouped(0.5), x), gradient(dm.HAP2S(0.5, 2.5, "polynomial"), x))
    alone = gradient(dm.HAP2S(0.5, margin=2.5), x, LONELY)
    assert_different(gradient(grouped(0.5), x, LONELY), alone)


# ------------------------------------------------------------------ batch-hard triplets


@pytest.mark.parametrize("seed", range(4))
def test_grouped_kl_at_gamma_zero_is_batch_hard(seed):
    # Only the hinges of the chosen pairs need to be open. So the band of the margin loss is laid
    # just around them: easier pairs clip, and with the band a little narrower it is over.
    x = batch(seed)
    unit = torch.nn.functional.normalize(x, dim=1)
    s, same = unit @ unit.T, LABELS[:, None] == LABELS
    others = ~torch.eye(8, dtype=torch.bool)
    upper = s.masked_fill(~(same & others), torch.inf).amin(1).max().item()
    lower = s.masked_fill(same, -torch.inf).amax(1).min().item()
    theirs, by_theirs = value_and_gradient(dm.Triplet(2.1, "hardest"), x)
    for room, holds in ((0.01, True), (PLENTY, True), (-0.01, False)):
        margin, threshold = (upper - lower) / 2 + room, (upper + lower) / 2
        loss = grouped(0.0, margin=margin, threshold=threshold)
        ours, by_ours = value_and_gradient(loss, x)
        if holds:
            assert_same(by_ours, by_theirs)
            assert ours - theirs == pytest.approx(2 * margin - 2.1, abs=1e-12)
        else:
            assert_different(by_ours, by_theirs)
        report = loss.report(x, LABELS)
        assert (report.active_negative_pairs < report.negative_pairs) == (room < PLENTY)


def test_batch_hard_shares_ties_as_grouped_kl_does():
    x = torch.eye(6, dtype=torch.float64)  # all pairs are equally hard
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    assert_same(gradient(grouped(0.0), x, labels), gradient(dm.Triplet(2.1, "hardest"), x, labels))


def test_batch_hard_needs_its_hinge_open_the_chosen_pairs_active_and_both_signs():
    x = batch(2)
    ours, hard = gradient(grouped(0.0), x), dm.Triplet(2.1, "hardest")
    assert_different(ours, gradient(dm.Triplet(-0.9, "hardest"), x))
    assert_different(gradient(grouped(0.0, margin=0.0, threshold=-0.5), x), gradient(hard, x))
    assert_different(gradient(grouped(0.1), x), gradient(hard, x))
    assert_different(gradient(grouped(0.0), x, LONELY), gradient(hard, x, LONELY))
