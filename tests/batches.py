"""Batches to try losses on, and what it means for a loss to agree with the oracle.

A `Case` is everything one call of a loss is given, in NumPy. `find` calls the loss with it,
`case.for_oracle` gives the same to the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import oracle
import torch
from hypothesis import strategies as st

KINDS = ("random", "duplicated", "exact", "clustered", "collapsed", "tiny")
SITUATIONS = (
    "labels",
    "imbalanced",
    "multilabel",
    "similar",
    "ignore",
    "reference",
    "reference, multilabel",
    "reference, similar, ignore",
)


@dataclass(frozen=True, eq=False)
class Case:
    """One call: rows x, a reference y or None, and which pairs are similar or do not count."""

    x: np.ndarray
    y: np.ndarray | None = None
    labels: np.ndarray | None = None
    reference_labels: np.ndarray | None = None
    similar: np.ndarray | None = None
    ignore: np.ndarray | None = None

    def tensors(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The arguments of the call. Rows and reference want a gradient."""
        given = {
            "embeddings": self.x,
            "reference": self.y,
            "labels": self.labels,
            "reference_labels": self.reference_labels,
            "similar": self.similar,
            "ignore": self.ignore,
        }
        tensors = {name: torch.tensor(a) for name, a in given.items() if a is not None}
        for name in ("embeddings", "reference"):
            if name in tensors:
                tensors[name] = tensors[name].to(dtype).requires_grad_()
        return tensors

    def for_oracle(self, dtype: torch.dtype) -> dict[str, Any]:
        """The same for the oracle: float64, but of the rows that `dtype` can hold."""
        similar = self.similar
        if similar is None:
            similar = oracle.similar_from_labels(self.labels, self.reference_labels)
        y = None if self.y is None else as_held(self.y, dtype)
        return {"x": as_held(self.x, dtype), "y": y, "similar": similar, "ignore": self.ignore}

    def matrices(self, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The similarities, and which ordered pairs are positive or negative."""
        given = self.for_oracle(dtype)
        s = oracle.similarity(given["x"], given["y"])
        return s, *oracle.ordered_pairs(given["similar"], self.ignore, within=self.y is None)


def as_held(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return np.asarray(torch.tensor(x).to(dtype).double().numpy())


def rows(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Embeddings of one kind. In a cluster are the rows i, i + 4, i + 8 ..."""
    d = int(rng.integers(1, 4)) if kind == "tiny" else int(rng.integers(3, 8))
    if kind in ("random", "tiny"):
        return np.asarray(rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-1, 1, size=(n, 1)))
    if kind == "duplicated":  # some rows are there two or three times, some pairs therefore too
        return np.asarray(rng.normal(size=(n, d))[rng.integers(0, 1 + n // 2, n)])
    if kind == "exact":
        # One, four or sixteen entries of ±1, so that the length is 1, 2 or 4: unit vectors and
        # similarities are exact in every arithmetic, and pairs tie in heaps (also at hinge kinks).
        x = np.zeros((n, 16))
        for row in x:
            places = rng.permutation(16)[: rng.choice([1, 4, 16])]
            row[places] = rng.choice([-1.0, 1.0], size=len(places))
        return x
    noise = {"clustered": 0.2, "collapsed": 1e-4}[kind]
    return np.asarray(rng.normal(size=(4, d))[np.arange(n) % 4] + noise * rng.normal(size=(n, d)))


def labels(n: int, situation: str, rng: np.random.Generator) -> np.ndarray:
    """Four classes in turn; or one large class and a few that may have a single member."""
    if "multilabel" in situation:
        return rng.random((n, 4)) < 0.3
    if situation == "imbalanced":
        return np.where(rng.random(n) < 0.7, 0, rng.integers(1, 6, n))
    return np.arange(n) % 4


def case(kind: str, situation: str, seed: int, n: int = 11, copies: int = 2) -> Case:
    """A batch of `n` rows (`tiny`: 1 to 5). A reference has `copies` of its rows, doubled, too."""
    rng = np.random.default_rng(seed)
    n, more = rng.integers(1, 6, 2) if kind == "tiny" else (n, n + 3)
    across = "reference" in situation
    everything = rows(kind, n + more if across else n, rng)
    x, y = everything[:n], None
    own_labels: np.ndarray | None = labels(n, situation, rng)
    other_labels = similar = ignore = None
    if across:
        y = np.concatenate([everything[n:], 2.0 * x[:copies]])
        other_labels = labels(len(y), situation, rng)
    shape = (n, n if y is None else len(y))
    if "similar" in situation:
        own_labels = other_labels = None
        similar = symmetric(rng.random(shape) < 0.3, within=not across)
    if "ignore" in situation:
        ignore = symmetric(rng.random(shape) < 0.25, within=not across)
    return Case(x, y, own_labels, other_labels, similar, ignore)


def symmetric(matrix: np.ndarray, *, within: bool) -> np.ndarray:
    """Within a batch symmetric; its diagonal stays as drawn, since it must not matter."""
    return np.triu(matrix) | np.triu(matrix, 1).T if within else matrix


def cases(situations: tuple[str, ...] = SITUATIONS) -> st.SearchStrategy[Case]:
    """Any kind of batch in any situation, from one row to sixteen."""
    return st.builds(
        case,
        st.sampled_from(KINDS),
        st.sampled_from(situations),
        st.integers(0, 2**32 - 1),
        st.integers(1, 16),
    )


def in_every_situation(setting: int) -> list[tuple[int, str, str]]:
    """Seed, kind and situation: all situations, in turn with all kinds, other for each setting."""
    kinds = [KINDS[(setting + i) % len(KINDS)] for i in range(len(SITUATIONS))]
    return [(100 * setting + i, kinds[i], there) for i, there in enumerate(SITUATIONS)]


class Found(NamedTuple):
    """What a loss of the library finds in a case."""

    value: float
    gradient: np.ndarray
    reference_gradient: np.ndarray | None


def find(loss: Any, of: Case, dtype: torch.dtype) -> Found:
    given = of.tensors(dtype)
    value = loss(**given)
    value.backward()
    assert value.dtype == dtype
    gradients = {}
    for name in ("embeddings", "reference"):
        gradients[name] = None
        if name in given:
            assert given[name].grad is not None
            assert given[name].grad.dtype == dtype
            gradients[name] = given[name].grad.double().numpy()
    return Found(value.item(), gradients["embeddings"], gradients["reference"])


def assert_close_to(
    outcome: oracle.Outcome,
    found: Found,
    of: Case,
    dtype: torch.dtype,
    gamma: float | None = None,
) -> None:
    """The accuracy that drometric promises.

    float64: 1e-10. float32: 1e-5, in the gradient times .01/γ where γ is smaller than .01, since
    there a similarity's rounding is worth e^{1e-7/γ} in its weight. A value's error is relative to
    max(1, |value|). A gradient's is the largest ‖Δg_i‖ ‖x_i‖ (which no scaling of x changes)
    relative to the largest ‖g_i‖ ‖x_i‖, or to Σ w |l'| where gradients cancel.
    """
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    error = abs(found.value - outcome.value) / max(1.0, abs(outcome.value))
    assert error <= tolerance, f"value {found.value}, expected {outcome.value} ({dtype})"
    if dtype != torch.float64 and gamma:
        tolerance *= max(1.0, 0.01 / gamma)
    pairs = [("gradient", of.x, found.gradient, outcome.gradient)]
    assert (of.y is None) == (found.reference_gradient is None)
    if of.y is not None:
        pairs.append(("reference's", of.y, found.reference_gradient, outcome.reference_gradient))
    for name, x, gradient, expected in pairs:
        assert np.isfinite(gradient).all()
        size = np.linalg.norm(x, axis=1)
        error = (np.linalg.norm(gradient - expected, axis=1) * size).max(initial=0.0)
        largest = (np.linalg.norm(expected, axis=1) * size).max(initial=0.0)
        assert error <= tolerance * max(largest, outcome.slope_mass), (
            f"{name} off by {error:.2e}, largest {largest:.2e}, mass {outcome.slope_mass:.2e} "
            f"({dtype})"
        )


def spec(thing: Any) -> oracle.Spec:
    """A pair loss or an uncertainty set in the oracle's words: its name and its parameters."""
    given = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    given = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    known = {k: v for k, v in given.items() if k != "_" and v is not None}
    return NAMES.get(type(thing).__name__, type(thing).__name__.lower()), known


NAMES = {
    "TopK": "top_k",
    "BalancedTopK": "balanced_top_k",
    "BalancedKL": "balanced_kl",
    "PerAnchorKL": "per_anchor_kl",
    "ChiSquare": "chi_square",
}


def smallest_gamma(uncertainty: Any) -> float | None:
    """The sharpest softmax of a set; γ = 0 is a choice, made in float64, and no softmax."""
    given = [np.ravel(g) for name, g in spec(uncertainty)[1].items() if name.startswith("gamma")]
    return min((float(g) for g in np.concatenate([*given, []]) if g > 0), default=None)
