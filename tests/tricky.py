"""Batches in which rounding, ties or scales could make two ways to compute a loss disagree."""

from __future__ import annotations

import numpy as np
from batches import KINDS, Case, case

INPUTS = (
    "all equal",
    "antipodal",
    "one-hot",
    "many copies",
    "within a step of bfloat16",
    "within a step of float32",
    "some zero",
    "scales of 1e3",
    "scales of 1e30",
)
EVERY_KIND = (*KINDS, *INPUTS)


def tricky_rows(name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    d = int(rng.integers(2, 9))
    noise = rng.normal(size=(n, d))
    if name == "all equal":
        return np.repeat(noise[:1], n, axis=0)
    if name == "antipodal":
        return noise[:1] * rng.choice([-1.0, 1.0], size=(n, 1))
    if name == "one-hot":
        return np.eye(4)[rng.integers(0, 4, n)]
    if name == "many copies":
        return rng.normal(size=(3, d))[rng.integers(0, 3, n)]
    if name == "within a step of bfloat16":
        return rng.normal(size=(1, d)) + rng.uniform(0, 2.0**-9) * noise
    if name == "within a step of float32":
        return rng.normal(size=(2, d))[rng.integers(0, 2, n)] + 3e-8 * noise
    if name == "some zero":
        return noise * (rng.random((n, 1)) < 0.6)
    size = {"scales of 1e3": 3.0, "scales of 1e30": 30.0}[name]
    return noise * 10.0 ** rng.uniform(-size, size, size=(n, 1))


def any_case(name: str, situation: str, seed: int, n: int = 11) -> Case:
    """A batch of `n` rows of one of `EVERY_KIND`."""
    if name in KINDS:
        return case(name, situation, seed, n)
    # Of another batch everything but the rows.
    of = case("random", situation, seed, n)
    others = 0 if of.y is None else len(of.y)
    rows = tricky_rows(name, len(of.x) + others, np.random.default_rng(seed))
    y = None if of.y is None else rows[len(of.x) :]
    return Case(rows[: len(of.x)], y, of.labels, of.reference_labels, of.similar, of.ignore)


def classes(sizes: str, n: int) -> np.ndarray:
    """Labels of `n` rows: few large classes, a single one, or none with two members."""
    return {"two": np.arange(n) % 2, "one": np.zeros(n, int), "own": np.arange(n)}[sizes]
