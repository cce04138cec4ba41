"""The paper's maths once more, in float64 NumPy, dense and slow: what the library is compared with.

Written from the paper alone and sharing no code with the library. Equations are the paper's; where
it slips or leaves something open, the comment says what is meant. Within a batch a pair is
unordered, i < j; anchors see ordered pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Spec = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    value: float
    gradient: np.ndarray  # (B, d), by the raw input rows
    reference_gradient: np.ndarray | None  # (R, d) with a reference
    weights: np.ndarray  # (B, R): weight of each pair (robust) or |dL/ds| (baselines)
    slope_mass: float  # sum of weight * |slope of the pair loss|


# ---------------------------------------------------------------- pairs and similarities


def similar_from_labels(labels: Any, reference_labels: Any = None) -> np.ndarray:
    """y_ij: same class, or (boolean B x C matrices) at least one label in common."""
    a = np.asarray(labels)
    b = a if reference_labels is None else np.asarray(reference_labels)
    if a.ndim == 1:
        return np.asarray(a[:, None] == b[None, :])
    return np.asarray((a[:, None, :] & b[None, :, :]).any(axis=2))


def inner_products(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    # One dimension after the other, and not as a matrix product: equal rows then give bitwise
    # equal similarities, wherever they stand, and S is symmetric to the last bit.
    s = np.zeros((len(u), len(v)))
    for k in range(u.shape[1]):
        s += u[:, k][:, None] * v[:, k][None, :]
    return s


def unit_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # u = x / ||x||, divided by the largest entry first so that no square overflows or vanishes.
    # ||x|| is returned as two factors (peak, length of x / peak) for the same reason.
    peak = np.abs(x).max(axis=1, initial=0.0)
    peak = np.where(peak > 0, peak, 1.0)
    scaled = x / peak[:, None]
    squared = np.zeros(len(x))
    for k in range(x.shape[1]):
        squared += scaled[:, k] * scaled[:, k]
    length = np.where(squared > 0, np.sqrt(squared), 1.0)
    return scaled / length[:, None], peak, length


def rows_for_similarity(x: Any, normalize: bool) -> np.ndarray:
    return unit_rows(np.asarray(x, float))[0] if normalize else np.asarray(x, float)


def similarity(x: Any, y: Any = None, *, normalize: bool = True) -> np.ndarray:
    u = rows_for_similarity(x, normalize)
    s = inner_products(u, u if y is None else rows_for_similarity(y, normalize))
    # Unit vectors are rounded, so that the cosine of parallel rows comes out as 1 ± 2e-16, another
    # for each row: they are to tie.
    return np.where(abs(abs(s) - 1) < 8e-16, np.sign(s), s) if normalize else s


def ordered_pairs(similar: Any, ignore: Any, within: bool) -> tuple[np.ndarray, np.ndarray]:
    """The sets P_i and N_i as rows of two masks, without ignored pairs and self-pairs."""
    similar = np.asarray(similar, dtype=bool)
    counted = np.ones_like(similar) if ignore is None else ~np.asarray(ignore, dtype=bool)
    if within:
        counted = counted & ~np.eye(len(similar), dtype=bool)
    return similar & counted, ~similar & counted


def assemble(
    value: float, ds: np.ndarray, x: Any, y: Any, normalize: bool, weights: np.ndarray, mass: float
) -> Outcome:
    """ds: dL/dS, over ordered pairs. Chain rule from there to the input rows."""

    def through_rows(du: np.ndarray, rows: Any) -> np.ndarray:
        if not normalize:
            return np.asarray(du)
        # d(x / ||x||) = (I - u u^T) / ||x||; a zero vector has no direction and gets 0.
        u, peak, length = unit_rows(np.asarray(rows, float))
        tangent = du - (du * u).sum(axis=1, keepdims=True) * u
        tangent[~u.any(axis=1)] = 0.0
        return np.asarray(tangent / length[:, None] / peak[:, None])

    u = rows_for_similarity(x, normalize)
    if y is None:  # s_ij = <u_i, u_j>: each row plays both roles
        return Outcome(value, through_rows((ds + ds.T) @ u, x), None, weights, mass)
    v = rows_for_similarity(y, normalize)
    return Outcome(value, through_rows(ds @ v, x), through_rows(ds.T @ u, y), weights, mass)


# ---------------------------------------------------------------- pair losses l(s)


def softplus_and_slope(z: Any) -> tuple[Any, Any]:
    """log(1 + e^z) and its derivative e^z / (1 + e^z) = exp(-log(1 + e^-z)), never overflowing."""
    return np.logaddexp(0.0, z), np.exp(-np.logaddexp(0.0, -z))


def losses_and_slopes(pair_loss: Spec, s: np.ndarray, positive: np.ndarray) -> Any:
    """l_ij and dl_ij/ds_ij of every pair; hinges have slope 0 at the kink."""
    name, given = pair_loss
    if name == "margin":
        # [m + y (threshold - s)]+ with y = +1 or -1 (the text's y in {0, 1} is not meant here)
        m, threshold = given["margin"], given["threshold"]
        inside = np.where(positive, m + (threshold - s), m + (s - threshold))
    elif name == "contrastive":
        inside = np.where(positive, 1.0 - s, s - given["threshold"])
    elif name == "binomial":
        # (2/beta) log(1 + e^{-beta (s - threshold)}), (2/alpha) log(1 + e^{alpha (s - threshold)})
        beta, alpha = given["scale_positive"], given["scale_negative"]
        rise_p, slope_p = softplus_and_slope(-beta * (s - given["threshold"]))
        rise_n, slope_n = softplus_and_slope(alpha * (s - given["threshold"]))
        loss = np.where(positive, 2.0 / beta * rise_p, 2.0 / alpha * rise_n)
        return loss, np.where(positive, -2.0 * slope_p, 2.0 * slope_n)
    else:
        raise ValueError(name)
    return np.maximum(inside, 0.0), np.where(inside > 0, np.where(positive, -1.0, 1.0), 0.0)


# ---------------------------------------------------------------- max over p in U, eq. (1)


def kl(losses: np.ndarray, gamma: float, zero_elements: int = 0) -> tuple[float, np.ndarray]:
    """gamma log((1/n) sum e^{l/gamma}) and p ~ e^{l/gamma}: DRO-KL, and each group of eq. (7)."""
    n = len(losses)
    every = np.concatenate([losses, np.zeros(zero_elements)])
    top = every.max()
    if gamma == 0:  # the maximum; uniform over the maximisers
        tied = every == top
        return float(top), (tied / tied.sum())[:n]
    if np.isinf(gamma):  # the mean
        return float(every.mean()), np.full(n, 1.0 / len(every))
    z = (every - top) / gamma
    # log1p and expm1: at a huge gamma the e^z are all 1 but for the digits that matter
    value = top + gamma * np.log1p(np.expm1(z).mean())
    return float(value), (np.exp(z) / np.exp(z).sum())[:n]


def chi_square(losses: np.ndarray, rho: float) -> np.ndarray:
    """The p of max sum p l over the simplex with sum (n p - 1)^2 <= 2 rho: U_phi."""
    n = len(losses)
    top, low = losses.max(), losses.min()
    tied = losses == top
    k = int(tied.sum())
    if k == n or rho == 0:  # no variance, or no room: uniform
        return np.full(n, 1.0 / n)
    if 2 * rho * k >= n * (n - k):  # uniform on the k maximisers is inside the ball
        return np.asarray(tied / k)
    z = (losses - top) / (top - low)  # the same p; z from -1 to 0

    # The KKT conditions give p ~ [z - eta]+ with the ball's constraint tight. Once the set with
    # p > 0 is known (m members, mean mu, V = sum (z - mu)^2), eta = mu - t where
    # sum p^2 = V / (m t)^2 + 1 / m has to be (2 rho + n) / n^2.
    def closed_form(active: np.ndarray) -> tuple[np.ndarray, float]:
        m, mu = int(active.sum()), z[active].mean()
        spread = ((z[active] - mu) ** 2).sum()
        room = 2 * rho * m - n * (n - m)  # n^2 m (sum p^2 - 1 / m), without cancellation
        if spread == 0 or room <= 0:  # by rounding only: the verge of saturation
            return active / m, mu
        t = n * np.sqrt(spread / (m * room))
        p = np.where(active, np.maximum(1.0 + (z - mu) / t, 0.0), 0.0) / m
        return p / p.sum(), mu - t

    p, eta = closed_form(np.ones(n, dtype=bool))
    if eta <= -1.0:  # nothing is clipped: the paper's mean + sqrt(2 rho Var / n)
        return p
    lower, upper = -1.0, 0.0
    for _ in range(200):  # sum p^2 rises with eta
        eta = (lower + upper) / 2
        w = np.maximum(z - eta, 0.0)
        too_uneven = n * n * (w @ w) / w.sum() ** 2 - n > 2 * rho
        lower, upper = (lower, eta) if too_uneven else (eta, upper)
    return closed_form(z > lower)[0]


def hardest(losses: np.ndarray, k: int) -> np.ndarray:
    """1/k on each of the k largest (all, if fewer); ties by position, that is smallest i, then j"""
    p = np.zeros(len(losses))
    chosen = np.argsort(-losses, kind="stable")[:k]
    p[chosen] = 1.0 / max(len(chosen), 1)
    return p


def worst_case(
    losses: np.ndarray, sign: np.ndarray, uncertainty: Spec, rows: int
) -> tuple[float, np.ndarray]:
    """F = max over p of sum p l (minus its penalty), and p*, for losses of n >= 1 listed pairs."""
    name, given = uncertainty
    n = len(losses)
    if name == "kl":
        return kl(losses, given["gamma"])
    if name == "balanced_kl":  # KL inside each sign
        p, value = np.zeros(n), 0.0
        groups = [(sign, given["gamma_positive"]), (~sign, given["gamma_negative"])]
        groups = [(group, gamma) for group, gamma in groups if group.any()]
        for group, gamma in groups:
            part, p[group] = kl(losses[group], gamma)
            value += part / len(groups)
        return value, p / len(groups)
    if name == "uniform":
        p = np.full(n, 1.0 / n)
    elif name == "simplex":
        p = hardest(losses, 1)
    elif name == "chi_square":
        p = chi_square(losses, given["rho"])
    elif name in ("top_k", "balanced_top_k"):
        k = given["k"] if "k" in given else max(1, round(given["per_example"] * rows))
        if name == "top_k":
            p = hardest(losses, k)
        else:  # DRO-TopK-PN: K/2 of each sign, here with half of the weight each
            p = np.zeros(n)
            p[sign] = hardest(losses[sign], k // 2)
            p[~sign] = hardest(losses[~sign], k - k // 2)
            p /= max(round(p.sum()), 1)  # one sign with nothing chosen: the other has all
    else:
        raise ValueError(name)
    return float(p @ losses), p


def per_anchor_kl(
    loss: np.ndarray, positive: np.ndarray, negative: np.ndarray, given: dict[str, Any]
) -> tuple[float, np.ndarray]:
    """Eq. (7): one KL group an anchor and sign; slack adds eq. DRO_MS_Loss's zero-loss element."""
    value, p = 0.0, np.zeros_like(loss)
    zero_elements = 1 if given.get("slack", False) else 0
    for members, gamma in ((positive, "gamma_positive"), (negative, "gamma_negative")):
        gammas = np.broadcast_to(np.asarray(given[gamma], float), (len(loss),))  # gamma_i
        for i in range(len(loss)):
            if members[i].any():  # an empty group gives 0
                part, p[i, members[i]] = kl(loss[i, members[i]], float(gammas[i]), zero_elements)
                value += part
    share = 1.0 / len(loss) if given.get("reduction", "mean") == "mean" else 1.0
    return value * share, p * share


def robust_pair_loss(
    x: Any,
    y: Any = None,
    *,
    similar: Any,
    ignore: Any = None,
    pair_loss: Spec,
    uncertainty: Spec,
    zero_loss: str = "keep",
    normalize: bool = True,
) -> Outcome:
    s = similarity(x, y, normalize=normalize)
    positive, negative = ordered_pairs(similar, ignore, within=y is None)
    loss, slope = losses_and_slopes(pair_loss, s, positive)
    if zero_loss == "drop":  # section 3.2: pairs of no loss are not there, for any count
        positive, negative = positive & (loss > 0), negative & (loss > 0)
    value, p = 0.0, np.zeros_like(s)
    counted = positive | negative
    if counted.any() and uncertainty[0] == "per_anchor_kl":
        value, p = per_anchor_kl(loss, positive, negative, uncertainty[1])
        if y is None:  # both anchors' weights, on the unordered pair
            p = np.triu(p + p.T, 1)
    elif counted.any():
        listed = np.triu(counted, 1) if y is None else counted
        value, p[listed] = worst_case(loss[listed], positive[listed], uncertainty, len(s))
    # Lemma 1: dF = sum p* dl
    return assemble(value, p * slope, x, y, normalize, p, float((p * np.abs(slope)).sum()))
