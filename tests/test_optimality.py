"""Every uncertainty set is a maximisation, so its answer can be checked without solving it again.

A set is written down here as `Group`s: which pairs share a simplex, with what mass, and what holds
inside it. From that follow feasibility, the objective, random rivals of p*, and a cvxpy problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import torch

import drometric as dm
from drometric.uncertainty import Pairs

MARGIN, THRESHOLD = 0.2, 0.1


@dataclass(frozen=True)
class Group:
    """p[index] = mass * q with q in the simplex, further restricted; the penalty is γ KL(q)."""

    index: np.ndarray
    mass: float = 1.0
    most: int = 1  # no entry of q above 1/most
    gamma: float = 0.0
    rho: float = np.inf  # Σ (n q - 1)² <= 2ρ
    slack: bool = False  # one more entry, of loss 0

    @property
    def size(self):
        return len(self.index) + self.slack

    def losses(self, loss):
        return np.append(loss[self.index], 0.0) if self.slack else loss[self.index]

    def share(self, p):
        q = p[self.index] / self.mass
        return np.append(q, 1 - q.sum()) if self.slack else q

    def violation(self, q):
        off = [abs(q.sum() - 1), -q.min(), q.max() - 1 / self.most]
        if self.rho < np.inf:
            off.append(np.sqrt(((self.size * q - 1) ** 2).sum()) - np.sqrt(2 * self.rho))
        return max(off)

    def penalty(self, q):
        if np.isinf(self.gamma):  # only the uniform weighting has no infinite penalty
            return np.where(np.abs(q * self.size - 1).max(-1) > 1e-9, np.inf, 0.0)
        inside = np.where(q > 0, q * np.log(np.where(q > 0, q, 1.0) * self.size), 0.0)
        return self.gamma * inside.sum(-1)

    def rivals(self, q_star, count, rng):
        """Random points of the group's set: mixtures, vertices, and points close to q*."""
        corners = np.zeros((count, self.size))
        for row in corners:
            row[rng.permutation(self.size)[: self.most]] = 1 / self.most
        if self.most == 1:
            spread = [rng.dirichlet(np.full(self.size, 10 ** rng.uniform(-2, 2))) for _ in corners]
            q = np.where(rng.random((count, 1)) < 0.5, corners, spread)
        else:
            blend = [rng.dirichlet(np.full(count, 10 ** rng.uniform(-4, 0))) for _ in corners]
            q = np.array(blend) @ corners
        if self.rho < np.inf:
            # Anything in the simplex comes into the ball by moving towards its centre.
            from_centre = q - 1 / self.size
            reach = np.sqrt(2 * self.rho) / self.size
            distance = np.maximum(np.linalg.norm(from_centre, axis=1, keepdims=True), 1e-300)
            q = 1 / self.size + from_centre * np.minimum(1.0, reach / distance)
        near = 10 ** -rng.uniform(0, 8, (count, 1)) * (rng.random((count, 1)) < 0.7)
        return np.where(near > 0, q_star + near * (q - q_star), q)


def whole(**how):
    return lambda pairs: [Group(np.arange(len(pairs)), **how)]


def by_sign(positive, negative):
    def groups(pairs):
        sides = (pairs.positive.numpy(), positive), (~pairs.positive.numpy(), negative)
        present = [(np.flatnonzero(mask), how) for mask, how in sides if mask.any()]
        made = []
        for index, how in present:
            limits = how | {"most": min(how.get("most", 1), len(index))}
            made.append(Group(index, mass=1 / len(present), **limits))
        return made

    return groups


def by_anchor(gamma_positive, gamma_negative, *, slack=False, mean=True):
    def groups(pairs):
        made = []
        for anchor in range(pairs.row_count):
            mine = pairs.row.numpy() == anchor
            sides = (
                (pairs.positive.numpy(), gamma_positive),
                (~pairs.positive.numpy(), gamma_negative),
            )
            for mask, gamma in sides:
                index = np.flatnonzero(mine & mask)
                strength = gamma if np.isscalar(gamma) else gamma[anchor]
                if len(index):
                    mass = 1 / pairs.row_count if mean else 1.0
                    made.append(Group(index, mass=mass, gamma=strength, slack=slack))
        return made

    return groups


EACH = np.array([0.1, 0.0, 0.3, np.inf, 1.0, 0.05])
CASES = {
    "uniform": (dm.Uniform(), whole(rho=0.0)),
    "simplex": (dm.Simplex(), whole()),
    "top-k": (dm.TopK(k=5), whole(most=5)),
    "top-k per example": (dm.TopK(per_example=1.4), whole(most=8)),
    "balanced top-k": (dm.BalancedTopK(k=7), by_sign({"most": 3}, {"most": 4})),
    "kl": (dm.KL(0.2), whole(gamma=0.2)),
    "kl, weak": (dm.KL(0.01), whole(gamma=0.01)),
    "kl, none": (dm.KL(0.0), whole(gamma=0.0)),
    "kl, infinite": (dm.KL(np.inf), whole(rho=0.0)),
    "balanced kl": (dm.BalancedKL(0.3, 0.05), by_sign({"gamma": 0.3}, {"gamma": 0.05})),
    "per anchor": (dm.PerAnchorKL(0.3, 0.05), by_anchor(0.3, 0.05)),
    "per anchor, slack": (
        dm.PerAnchorKL(0.3, 0.05, slack=True, reduction="sum"),
        by_anchor(0.3, 0.05, slack=True, mean=False),
    ),
    "per anchor, one γ each": (
        dm.PerAnchorKL(torch.tensor(EACH), torch.tensor(EACH).flip(0), slack=True),
        by_anchor(EACH, EACH[::-1], slack=True),
    ),
    "chi-square, small": (dm.ChiSquare(0.3), whole(rho=0.3)),
    "chi-square": (dm.ChiSquare(20.0), whole(rho=20.0)),
    "chi-square, large": (dm.ChiSquare(1e4), whole(rho=1e4)),
}


def scene(seed, *, within):
    """Six anchors with each other, or with nine others; their losses are computed by hand."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(9, 3))
    labels, others = np.array([0, 1, 0, 2, 1, 0]), np.array([0, 1, 2, 0, 1, 2, 0, 0, 3])
    if within:
        y, others = x, labels
    unit_x, unit_y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    similar, s = labels[:, None] == others, unit_x @ unit_y.T
    loss = np.maximum(MARGIN + np.where(similar, THRESHOLD - s, s - THRESHOLD), 0)
    row, column = np.nonzero(np.triu(np.ones_like(similar), 1) if within else np.ones_like(s))
    given = [torch.tensor(part) for part in (loss[row, column], similar[row, column], row, column)]
    pairs = Pairs(*given, row_count=6, column_count=len(y), within=within)
    call = (torch.tensor(x), torch.tensor(labels))
    across = {"reference": torch.tensor(y), "reference_labels": torch.tensor(others)}
    return pairs, call, {} if within else across


def objective(groups, shares, loss):
    return sum(
        g.mass * (q @ g.losses(loss) - g.penalty(q)) for g, q in zip(groups, shares, strict=True)
    )


def check_optimal(groups, value, p, loss, rng):
    shares = [g.share(p) for g in groups]
    covered = np.zeros(len(p), dtype=bool)
    for g, q in zip(groups, shares, strict=True):
        assert g.violation(q) < 1e-12
        covered[g.index] = True
    assert not p[~covered].any()
    assert value == pytest.approx(objective(groups, shares, loss), abs=1e-12)
    rivals = [g.rivals(q, 1000, rng) for g, q in zip(groups, shares, strict=True)]
    for g, drawn in zip(groups, rivals, strict=True):
        assert max(g.violation(q) for q in drawn) < 1e-12
    reached = objective(groups, rivals, loss)
    assert reached.max() <= value + 1e-12
    # The rivals must be able to come close, or they would show nothing.
    assert np.isinf(reached.min()) or reached.max() > value - 0.05


def solved_by_cvxpy(groups, loss):
    terms, constraints, variables = [], [], []
    for g in groups:
        q = cp.Variable(g.size, nonneg=True)
        constraints.append(cp.sum(q) == 1)
        if g.most > 1:
            constraints.append(q <= 1 / g.most)
        if g.rho < np.inf:
            constraints.append(cp.norm(g.size * q - 1) <= np.sqrt(2 * g.rho))
        if np.isinf(g.gamma):
            constraints.append(q == 1 / g.size)
        term = g.losses(loss) @ q
        if 0 < g.gamma < np.inf:
            term -= g.gamma * cp.sum(cp.kl_div(q, np.full(g.size, 1 / g.size)))
        terms.append(g.mass * term)
        variables.append(q)
    problem = cp.Problem(cp.Maximize(cp.sum(cp.hstack(terms))), constraints)
    precise = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-9)
    problem.solve(solver=cp.CLARABEL, **precise)
    return problem.value, [q.value for q in variables]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_worst_case_is_feasible_and_beats_random_weightings(name, seed):
    uncertainty, describe = CASES[name]
    # Anchors see ordered pairs: between two sets each pair has one anchor, and p* can be read off.
    pairs, _, _ = scene(seed, within="anchor" not in name and seed % 2 == 0)
    value, weight = uncertainty.worst_case(pairs)
    rng = np.random.default_rng(seed)
    check_optimal(describe(pairs), value.item(), weight.numpy(), pairs.loss.numpy(), rng)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_its_weights_are_optimal(name):
    uncertainty, describe = CASES[name]
    pairs, call, across = scene(7, within="anchor" not in name)
    loss = dm.RobustPairLoss(dm.Margin(MARGIN, THRESHOLD), uncertainty)
    i, j, weight = loss.weights(*call, **across)
    assert (weight > 0).all()
    dense = np.zeros((pairs.row_count, pairs.column_count))
    dense[i.numpy(), j.numpy()] = weight.numpy()
    p = dense[pairs.row.numpy(), pairs.column.numpy()]
    assert p.sum() == pytest.approx(dense.sum())
    rng = np.random.default_rng(0)
    value = loss(*call, **across).item()
    check_optimal(describe(pairs), value, p, pairs.loss.numpy(), rng)


@pytest.mark.parametrize("name", [name for name in CASES if "anchor" in name])
def test_within_a_batch_both_ends_of_a_pair_are_anchors(name):
    # The unordered pair has the weight of its two ordered ones, which the form across two sets
    # (checked above) has one by one.
    uncertainty, _ = CASES[name]
    pairs, call, _ = scene(3, within=True)
    both = [torch.cat([a, b]) for a, b in ((pairs.row, pairs.column), (pairs.column, pairs.row))]
    ordered = Pairs(pairs.loss.repeat(2), pairs.positive.repeat(2), *both, 6, 6, within=False)
    value, weight = uncertainty.worst_case(ordered)
    folded = weight.reshape(2, -1).sum(0)
    got = uncertainty.worst_case(pairs)
    assert got.value.item() == pytest.approx(value.item(), abs=1e-14)
    torch.testing.assert_close(got.weight, folded, rtol=0, atol=1e-14)
    loss = dm.RobustPairLoss(dm.Margin(MARGIN, THRESHOLD), uncertainty)
    i, j, from_loss = loss.weights(*call)
    dense = torch.zeros(6, 6, dtype=torch.float64)
    dense[i, j] = from_loss
    torch.testing.assert_close(dense[pairs.row, pairs.column], folded, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_convex_solver_agrees(name, seed):
    uncertainty, describe = CASES[name]
    pairs, _, _ = scene(seed, within="anchor" not in name)
    value, weight = uncertainty.worst_case(pairs)
    groups, loss = describe(pairs), pairs.loss.numpy()
    best, shares = solved_by_cvxpy(groups, loss)
    assert value.item() == pytest.approx(best, abs=1e-6)
    for g, q in zip(groups, shares, strict=True):
        # A linear objective may have many maximisers; p* is unique with a penalty or in a ball
        # whose surface is reached.
        saturated = g.rho >= g.size * (g.size / (loss == loss.max()).sum() - 1) / 2
        if g.gamma > 0 or not saturated:
            np.testing.assert_allclose(g.share(weight.numpy()), q, atol=1e-4)


@pytest.mark.parametrize("k", [1, 2, 7, 14, 15, 40])
@pytest.mark.parametrize("seed", range(5))
def test_top_k_is_the_dual_of_conditional_value_at_risk(k, seed):
    pairs, _, _ = scene(seed, within=True)
    loss = pairs.loss.numpy()
    cut = min(k, len(loss))
    # t + Σ [l - t]+ / K is convex and piecewise linear in t: its minimum is at one of the losses.
    dual = min(t + np.maximum(loss - t, 0).sum() / cut for t in loss)
    assert dm.TopK(k=k).worst_case(pairs).value.item() == pytest.approx(dual, abs=1e-14)
