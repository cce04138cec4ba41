"""What a loss must give where all pairs are equally similar, worked out by hand.

In most degenerate batches every pair has the same similarity s. Then a pair's loss depends on its
sign only, and every loss of the library shrinks to a formula in s, in the number of positives P_i
and of negatives N_i of each anchor. No sort, no solver and no tensor is needed to know the answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import drometric as dm


@dataclass(frozen=True)
class Alike:
    """Pairs that all have one similarity, and how many of each sign every anchor has."""

    similarity: float
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    within: bool = True
    distance: float | None = None  # of unit vectors, unless said otherwise

    @property
    def rows(self):
        return len(self.positives)

    def unordered(self, ordered):
        return sum(ordered) // 2 if self.within else sum(ordered)


def slope(loss, alike, step=1e-6):
    """The derivative of the value, were all similarities to rise together."""
    up, down = (replace(alike, similarity=alike.similarity + h) for h in (step, -step))
    return (bounds(loss, up)[0] - bounds(loss, down)[0]) / (2 * step)


def bounds(loss, alike):
    """The least and the largest value that the loss may have: equal, unless it draws pairs."""
    if isinstance(loss, dm.RobustPairLoss):
        return _robust(loss, alike)
    value = _baseline(loss, alike)
    return value, value


def _pair_losses(pair_loss, s):
    threshold = pair_loss.threshold
    if isinstance(pair_loss, dm.Margin):
        m = pair_loss.margin
        return max(m + threshold - s, 0.0), max(m + s - threshold, 0.0)
    if isinstance(pair_loss, dm.Contrastive):
        return max(1 - s, 0.0), max(s - threshold, 0.0)
    beta, alpha = pair_loss.scale_positive, pair_loss.scale_negative
    return (
        2 / beta * math.log1p(math.exp(beta * (threshold - s))),
        2 / alpha * math.log1p(math.exp(alpha * (s - threshold))),
    )


def _robust(loss, alike):
    losses = _pair_losses(loss.pair_loss, alike.similarity)
    per_anchor = [
        count if of_sign > 0 or loss.zero_loss == "keep" else (0,) * alike.rows
        for count, of_sign in zip((alike.positives, alike.negatives), losses, strict=True)
    ]
    number = [alike.unordered(count) for count in per_anchor]
    present = [of_sign for of_sign, n in zip(losses, number, strict=True) if n]
    if not present:
        return 0.0, 0.0
    chosen = loss.uncertainty
    if isinstance(chosen, dm.KL) and chosen.sample is not None:
        return min(present), max(present)
    if isinstance(chosen, dm.PerAnchorKL):
        value = _per_anchor_kl(chosen, losses, per_anchor, alike.rows)
    elif isinstance(chosen, dm.BalancedKL):
        value = sum(present) / len(present)
    elif isinstance(chosen, dm.BalancedTopK):
        k = _size(chosen, alike.rows)
        wanted = (k // 2, k - k // 2)
        given = [of for of, n, k in zip(losses, number, wanted, strict=True) if n and k]
        value = sum(given) / max(len(given), 1)
    else:
        value = _of_all_pairs(chosen, losses, number, alike.rows)
    return value, value


def _of_all_pairs(chosen, losses, number, rows):
    n = sum(number)
    mean = sum(of_sign * count for of_sign, count in zip(losses, number, strict=True)) / n
    hardest = sorted(zip(losses, number, strict=True), reverse=True)
    hardest = [(of_sign, count) for of_sign, count in hardest if count]
    top, tied = hardest[0]
    if isinstance(chosen, dm.Uniform):
        return mean
    if isinstance(chosen, dm.Simplex):
        return top
    if isinstance(chosen, dm.TopK):
        k = min(_size(chosen, rows), n)
        first = min(k, tied)
        return (top * first + hardest[-1][0] * (k - first)) / k
    if isinstance(chosen, dm.KL):
        if chosen.gamma == 0:
            return top
        if math.isinf(chosen.gamma):
            return mean
        mass = sum(count * math.exp((of - top) / chosen.gamma) for of, count in hardest)
        return top + chosen.gamma * math.log(mass / n)
    assert isinstance(chosen, dm.ChiSquare)
    if chosen.rho >= n * (n / tied - 1) / 2:
        return top
    variance = sum(count * (of - mean) ** 2 for of, count in hardest) / n
    return mean + math.sqrt(2 * chosen.rho * variance / n)


def _size(chosen, rows):
    return chosen.k if chosen.k is not None else max(1, round(chosen.per_example * rows))


def _per_anchor_kl(chosen, losses, per_anchor, rows):
    total = 0.0
    gammas = (chosen.gamma_positive, chosen.gamma_negative)
    for of_sign, counts, gamma in zip(losses, per_anchor, gammas, strict=True):
        for i, count in enumerate(counts):
            own = gamma if isinstance(gamma, float | int) else float(gamma[i])
            total += _group(of_sign, count, own, slack=chosen.slack)
    return total / rows if chosen.reduction == "mean" else total


def _group(of_sign, count, gamma, *, slack):
    if not count or not slack:
        return of_sign if count else 0.0
    if gamma == 0:
        return of_sign
    if math.isinf(gamma):
        return count * of_sign / (count + 1)
    return of_sign + gamma * math.log((count + math.exp(-of_sign / gamma)) / (count + 1))


def _mined(miner, alike):
    """How many ordered pairs of each sign a miner takes at every anchor, repetitions counted."""
    s, pairs = alike.similarity, list(zip(alike.positives, alike.negatives, strict=True))
    if isinstance(miner, dm.SemiHard):
        inside = miner.threshold - miner.margin < s < miner.threshold
        if miner.per_positive is None:
            return [(p, n * inside) for p, n in pairs]
        return [(p, p * miner.per_positive * (n > 0) * inside) for p, n in pairs]
    if isinstance(miner, dm.DistanceWeighted):
        far = alike.distance if alike.distance is not None else math.sqrt(max(2 - 2 * s, 0))
        return [(p, p * (n > 0) * (far < miner.nonzero_loss_cutoff)) for p, n in pairs]
    if isinstance(miner, dm.MultiSimilarityMiner):
        return [(p * (n > 0), n * (p > 0)) for p, n in pairs]
    if isinstance(miner, dm.ThresholdMiner):
        low, high = miner.threshold - miner.margin, miner.threshold + miner.margin
        return [(p * (s < high), n * (s > low)) for p, n in pairs]
    return pairs


def _baseline(loss, alike):
    s, pairs = alike.similarity, _mined(getattr(loss, "miner", None), alike)
    both = [(p, n) for p, n in pairs if p and n]
    if isinstance(loss, dm.MinedPairLoss):
        of_positive, of_negative = _pair_losses(loss.pair_loss, s)
        total = sum(p * of_positive + n * of_negative for p, n in pairs)
        return total / max(sum(p + n for p, n in pairs), 1)
    if isinstance(loss, dm.NPair):
        return sum(p * math.log1p(n) for p, n in pairs) / max(sum(p for p, _ in pairs), 1)
    if isinstance(loss, dm.Triplet) and loss.triplets != "hardest":
        # No negative is nearer or farther than a positive: nothing is hard or semi-hard.
        return loss.margin if both and loss.triplets == "all" else 0.0
    if isinstance(loss, dm.Triplet | dm.HAP2S):
        total = loss.margin * len(both)
    elif isinstance(loss, dm.LiftedStructure):
        total = sum(max(loss.margin + math.log(p * n), 0.0) for p, n in both)
    else:
        assert isinstance(loss, dm.MultiSimilarity)
        excess = s - loss.threshold
        total = sum(
            math.log1p(p * math.exp(-loss.alpha * excess)) / loss.alpha
            + math.log1p(n * math.exp(loss.beta * excess)) / loss.beta
            for p, n in pairs
        )
    return total / max(len(pairs), 1) if getattr(loss, "reduction", "mean") == "mean" else total
