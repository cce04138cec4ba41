"""The oracle, second half: what the framework recovers and is compared with, and the miners.

Like the first, written from the paper alone, in float64 NumPy, and sharing no code with the
library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import (
    Outcome,
    Spec,
    assemble,
    inner_products,
    kl,
    losses_and_slopes,
    ordered_pairs,
    rows_for_similarity,
    similarity,
    softplus_and_slope,
)

Anchor = tuple[Any, Any, Any]


def log_sum_exp(z: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """log sum c e^z and its derivative by z; members with count 0 are absent; not empty."""
    top = z[counts > 0].max()
    terms = np.where(counts > 0, counts * np.exp(np.minimum(z - top, 0.0)), 0.0)
    return float(top + np.log(terms.sum())), terms / terms.sum()


# One anchor of each baseline: s its row of similarities, pos and neg how often each pair counts.
# They return the anchor's sum, its derivative by s, and what it adds to the mean's denominator.


def lifted_structure(s: Any, pos: Any, neg: Any, margin: float) -> Anchor:
    # Eq. (3) as [log sum_P e^{margin - s} + log sum_N e^s]+: as printed its lambda cancels.
    if pos.any() and neg.any():
        total_p, weight_p = log_sum_exp(margin - s, pos)
        total_n, weight_n = log_sum_exp(s, neg)
        if total_p + total_n > 0:
            return total_p + total_n, weight_n - weight_p, 1
    return 0.0, 0.0 * s, 1


def multi_similarity(
    s: Any, pos: Any, neg: Any, alpha: float, beta: float, threshold: float
) -> Anchor:
    # Eq. (2): (1/a) log(1 + sum e^z) with z = -alpha (s - threshold) or beta (s - threshold)
    value, ds = 0.0, 0.0 * s
    for counts, scale, sign in ((pos, alpha, -1.0), (neg, beta, 1.0)):
        if counts.any():
            total, weight = log_sum_exp(sign * scale * (s - threshold), counts)
            rise, slope = softplus_and_slope(total)
            value += rise / scale
            ds += sign * slope * weight
    return value, ds, 1


def hap2s(s: Any, pos: Any, neg: Any, gamma: float, margin: float, distance: Any) -> Anchor:
    # Eq. HAP2S: [mean_q- of s - mean_q+ of s + margin]+, the q constant for the gradient.
    if not (pos.any() and neg.any()):
        return 0.0, 0.0 * s, 1
    if distance is None:  # exponential: q+ = e^{-s/gamma}, q- = e^{s/gamma}, eq. q
        weight_p, weight_n = kl(-s[pos], gamma)[1], kl(s[neg], gamma)[1]
    else:  # polynomial: q+ = (d + 1)^10, q- = (d + 1)^-20
        weight_p = kl(10.0 * np.log1p(distance[pos]), 1.0)[1]
        weight_n = kl(-20.0 * np.log1p(distance[neg]), 1.0)[1]
    inside = weight_n @ s[neg] - weight_p @ s[pos] + margin
    ds = 0.0 * s
    if inside > 0:
        ds[neg], ds[pos] = weight_n, -weight_p
    return max(inside, 0.0), ds, 1


def n_pair(s: Any, pos: Any, neg: Any) -> Anchor:
    # log(1 + sum_N e^{s_an - s_ap}) of each ordered positive; without a negative that is 0.
    ds = 0.0 * s
    if not (pos.any() and neg.any()):
        return 0.0, ds, pos.sum()
    total, weight_n = log_sum_exp(s, neg)
    rise, slope = softplus_and_slope(total - s[pos])
    ds[pos] = -slope
    return rise.sum(), ds + slope.sum() * weight_n, pos.sum()


def triplet(s: Any, pos: Any, neg: Any, margin: float, triplets: str) -> Anchor:
    # [s_an - s_ap + margin]+ of the triplets selected; "hardest" is eq. BH, over all anchors
    ds = 0.0 * s
    p, n = np.flatnonzero(pos), np.flatnonzero(neg)
    if triplets == "hardest" and len(p) and len(n):
        p, n = p[[np.argmin(s[p])]], n[[np.argmax(s[n])]]
    s_ap, s_an = s[p][:, None], s[n][None, :]
    chosen = np.ones((len(p), len(n)), dtype=bool)  # "all": zeros included
    if triplets == "hard":
        chosen = s_an > s_ap
    elif triplets == "semi-hard":
        chosen = (s_ap - margin < s_an) & (s_an < s_ap)
    inside = s_an - s_ap + margin
    active = chosen & (inside > 0)
    ds[n] += active.sum(axis=0)
    ds[p] -= active.sum(axis=1)
    return inside[active].sum(), ds, 1 if triplets == "hardest" else chosen.sum()


def mined_pair_loss(s: Any, pos: Any, neg: Any, pair_loss: Spec) -> Anchor:
    loss_p, slope_p = losses_and_slopes(pair_loss, s, np.full(len(s), True))
    loss_n, slope_n = losses_and_slopes(pair_loss, s, np.full(len(s), False))
    value = (pos * loss_p + neg * loss_n).sum()
    return value, pos * slope_p + neg * slope_n, pos.sum() + neg.sum()


def euclidean(x: Any, y: Any, normalize: bool, s: np.ndarray) -> np.ndarray:
    # ||u||^2 from the same sums as s, so that equal rows are at distance 0 exactly
    rows = [rows_for_similarity(z, normalize) for z in (x, x if y is None else y)]
    norms = [np.array([inner_products(u[None], u[None])[0, 0] for u in z]) for z in rows]
    return np.asarray(np.sqrt(np.maximum(norms[0][:, None] + norms[1][None, :] - 2.0 * s, 0.0)))


BASELINES: dict[str, Any] = {
    f.__name__: f
    for f in (lifted_structure, multi_similarity, hap2s, n_pair, triplet, mined_pair_loss)
}


def baseline(
    name: str,
    x: Any,
    y: Any = None,
    *,
    similar: Any,
    ignore: Any = None,
    normalize: bool = True,
    mined: Any = None,
    reduction: str = "mean",
    **given: Any,
) -> Outcome:
    s = similarity(x, y, normalize=normalize)
    pos, neg = ordered_pairs(similar, ignore, within=y is None)
    if mined is not None:  # ordered pairs with multiplicity take the place of P_i and N_i
        pos, neg = (np.asarray(counts) for counts in mined)
    polynomial = given.pop("weighting", "exponential") == "polynomial"
    distances = euclidean(x, y, normalize, s) if polynomial else np.empty(0)
    value, ds, counted = 0.0, np.zeros_like(s), 0
    for i in range(len(s)):
        if name == "hap2s":
            given["distance"] = distances[i] if polynomial else None
        part, ds[i], members = BASELINES[name](s[i], pos[i], neg[i], **given)
        value, counted = value + float(part), counted + int(members)
    share = 1.0 / max(counted, 1) if reduction == "mean" else 1.0
    ds *= share
    weights = np.triu(np.abs(ds + ds.T), 1) if y is None else np.abs(ds)
    return assemble(value * share, ds, x, y, normalize, weights, float(weights.sum()))


# ---------------------------------------------------------------- miners


def mine(
    name: str, s: np.ndarray, positive: np.ndarray, negative: np.ndarray, **given: Any
) -> tuple[np.ndarray, np.ndarray]:
    """How often each ordered pair is kept, by the miners that draw nothing."""
    if name == "semi_hard":  # every positive; negatives with threshold - margin < s < threshold
        low, high = given["threshold"] - given["margin"], given["threshold"]
        keep_p, keep_n = positive, negative & (low < s) & (s < high)
    elif name == "threshold":  # exactly the pairs with a positive margin loss
        keep_p = positive & (s < given["threshold"] + given["margin"])
        keep_n = negative & (s > given["threshold"] - given["margin"])
    elif name == "multi_similarity":
        # An anchor of one sign only keeps nothing: the extreme of an empty set is infinite.
        hardest_p = np.where(positive, s, np.inf).min(axis=1, keepdims=True, initial=np.inf)
        hardest_n = np.where(negative, s, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
        keep_p = positive & (s < hardest_n + given["epsilon"])
        keep_n = negative & (s > hardest_p - given["epsilon"])
    else:
        raise ValueError(name)
    return keep_p.astype(np.int64), keep_n.astype(np.int64)


def draw_probabilities(
    name: str, s: np.ndarray, positive: np.ndarray, negative: np.ndarray, **given: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Draws per anchor, and each negative's probability in one of its draws."""
    if name == "semi_hard":  # any negative of the anchor's band, per ordered positive
        low, high = given["threshold"] - given["margin"], given["threshold"]
        allowed = negative & (low < s) & (s < high)
        draws = positive.sum(axis=1) * int(given["per_positive"])
        log_weight = np.zeros_like(s)
    elif name == "distance_weighted":
        # q(D) ~ D^{d-2} (1 - D^2/4)^{(d-3)/2} on the unit sphere; a negative weighs 1/q
        distance = np.sqrt(np.maximum(2.0 - 2.0 * s, 0.0))
        floored = np.maximum(distance, given["cutoff"])
        inside = np.maximum(1.0 - floored**2 / 4.0, 1e-8)
        d = given["dimension"]
        log_weight = -(d - 2.0) * np.log(floored) - (d - 3.0) / 2.0 * np.log(inside)
        allowed = negative & (distance < given["nonzero_loss_cutoff"])
        draws = positive.sum(axis=1)
    else:
        raise ValueError(name)
    draws = np.where(allowed.any(axis=1), draws, 0).astype(np.int64)
    probability = np.zeros_like(s)
    for i in np.flatnonzero(draws):
        weight = np.exp(log_weight[i, allowed[i]] - log_weight[i, allowed[i]].max())
        probability[i, allowed[i]] = weight / weight.sum()
    return draws, probability
