"""Every path gives what the plain one gives: values, gradients, and which pairs are selected.

`pytest -m slow tests/engine/test_paths.py` tries ten thousand calls at random.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import SITUATIONS, Case, smallest_gamma
from every_loss import BASELINES, FAMILIES, one_of
from every_loss import PAIR_LOSSES as SOME_PAIR_LOSSES
from every_loss import SETS as SOME_SETS
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_path import assert_as_plain, found_on, plain_batch, rounding_decides
from test_robust_loss import PAIR_LOSSES as MORE_PAIR_LOSSES
from test_robust_loss import SETS as MORE_SETS
from torch import Tensor
from tricky import EVERY_KIND, any_case, classes

import drometric as dm
from drometric.engine import active, anchors, judged, layout
from drometric.engine.arguments import Arguments
from drometric.engine.hard import TooManyTiesError, hardest, select
from drometric.engine.judged import joined
from drometric.engine.layout import read_layout
from drometric.engine.plan import choose, planned

PAIR_LOSSES = [*SOME_PAIR_LOSSES.values(), *MORE_PAIR_LOSSES]
# A loss that draws has a test of its own.
SETS = {**MORE_SETS, **{name: s for name, s in SOME_SETS.items() if name != "kl-sampled"}}
FORMS = list(product(PAIR_LOSSES, ("keep", "drop")))

TILES = ((1, 1), (7, 5), (64, 64), (8, 16), (500, 500))
SCREENS = (torch.float32, torch.bfloat16)
PLANS = [
    {"path": "tiles", "tile": tile, "screen": screen, "spare": spare}
    for tile, screen, spare in product(TILES, SCREENS, (0, 3, 10**6))
] + [{"path": "dense"}]

# How few is few: with 0 and 1 a small batch is computed as a large one. The number of positives
# in a list, of active pairs in a list, of an anchor's pairs with weight, of exact similarities.
LIMITS = list(product((32, 0, 1), (8, 0), (8, 1), (64, 2)))
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _usual_limits() -> Iterator[None]:
    usual = layout.SHORT_LIST, active.FEW, anchors.HEAVY, judged.EXACTLY_AT_ONCE
    yield
    limit(usual)


def limit(few: tuple[int, int, int, int]) -> None:
    layout.SHORT_LIST, active.FEW, anchors.HEAVY, judged.EXACTLY_AT_ONCE = few


def arguments_of(of: Case, dtype: torch.dtype) -> Arguments:
    return Arguments(**{name: tensor.detach() for name, tensor in of.tensors(dtype).items()})


def check(
    name: str, form: tuple[Any, str], of: Case, dtype: torch.dtype, plan: Any, normalize: bool
) -> None:
    (pair_loss, zero_loss), uncertainty = form, SETS[name](len(of.x))
    arguments = arguments_of(of, dtype)
    options = {"zero_loss": zero_loss, "normalize": normalize}
    loss = dm.RobustPairLoss(pair_loss, uncertainty, **options)
    if rounding_decides(loss, arguments):
        loss.zero_loss = "keep"
    assert_as_plain(loss, arguments, smallest_gamma(uncertainty), **plan)


def holds(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype, or one that can hold such rows."""
    return torch.float32 if name == "scales of 1e30" and dtype == torch.float16 else dtype


@pytest.mark.parametrize("name", SETS)
def test_every_set_on_every_kind_of_batch(name: str) -> None:
    start = 7 * list(SETS).index(name)
    turns = zip(*(cycle(o) for o in (FORMS, PLANS, LIMITS, DTYPES)), strict=True)
    for _ in range(start):
        next(turns)
    for number, (kind, offset) in enumerate(product(EVERY_KIND, (0, 3))):
        situation = SITUATIONS[(start + number + offset) % len(SITUATIONS)]
        of = any_case(kind, situation, start + number, n=(11, 16, 19)[number % 3])
        form, plan, few, dtype = next(turns)
        limit(few)
        # Rows of every scale have a similarity only where they are normalised.
        normalize = number % 4 > 0 or kind == "scales of 1e30"
        check(name, form, of, holds(kind, dtype), plan, normalize)


@pytest.mark.parametrize("name", ["ms", "ms-sum", "lifted", "lifted-sum"])
def test_per_anchor_baselines_on_every_kind_of_batch(name: str) -> None:
    turns = zip(*(cycle(o) for o in (PLANS, LIMITS, DTYPES)), strict=True)
    for number, (kind, situation) in enumerate(product(EVERY_KIND, SITUATIONS)):
        plan, few, dtype = next(turns)
        limit(few)
        loss = BASELINES[name](normalize=number % 4 > 0 or kind == "scales of 1e30")
        arguments = arguments_of(any_case(kind, situation, number), holds(kind, dtype))
        gamma = 1 / loss.beta if isinstance(loss, dm.MultiSimilarity) else 1.0
        assert_as_plain(loss, arguments, gamma, **plan)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f in BASELINES or "+" in f])
def test_losses_over_anchors(family: str) -> None:
    for number, situation in enumerate(SITUATIONS):
        of = any_case("random", situation, number)
        # Each call starts the draws of a miner afresh.
        plain, found = (
            found_on(one_of(family), arguments_of(of, torch.float64), path=path)
            for path in ("plain", "tiles")
        )
        torch.testing.assert_close(found.value, plain.value, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found.gradient, plain.gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", ["two", "one", "own"])
def test_few_large_classes_one_and_none(sizes: str) -> None:
    rng = np.random.default_rng(0)
    for n in (150, 290):
        of = Case(rng.normal(size=(n, 8)), labels=classes(sizes, n))
        for name in ("top-2B", "balanced-top-8", "kl", "balanced-kl", "anchor-kl", "uniform"):
            plan = {"path": "tiles", "tile": (64, 48), "screen": torch.bfloat16}
            check(name, (dm.Margin(), "drop"), of, torch.float32, plan, True)


@pytest.mark.parametrize("form", ["dense", "coo", "csr", "mapped"])
def test_matrices_of_every_form(form: str, tmp_path: Path) -> None:
    for seed, situation in enumerate(("similar", "ignore", "reference, similar, ignore")):
        of = any_case("random", situation, seed, n=16)
        given_ = {name: tensor.detach() for name, tensor in of.tensors(torch.float32).items()}
        for name in ("similar", "ignore"):
            if name in given_:
                given_[name] = as_form(given_[name], form, tmp_path / f"{seed} {name}")
        for name in ("top-8", "kl", "balanced-kl", "anchor-kl"):
            loss = dm.RobustPairLoss(dm.Margin(), SETS[name](16))
            assert_as_plain(loss, Arguments(**given_), path="tiles", tile=(7, 5))


def as_form(matrix: Tensor, form: str, path: Path) -> Tensor:
    if form == "coo":
        return matrix.to_sparse()
    if form == "csr":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch's CSR tensors are in beta state
            return matrix.to_sparse_csr()
    if form == "mapped":
        path.write_bytes(matrix.numpy().tobytes())
        flat = torch.from_file(str(path), shared=False, size=matrix.numel(), dtype=torch.bool)
        return flat.reshape(matrix.shape)
    return matrix


def selected(arguments: Arguments, pair_loss: Any, k: dict[bool, int]) -> set[tuple[int, int]]:
    """The k hardest pairs of some signs together, by the algorithm of the tiles."""
    read = read_layout(arguments, normalize=True)
    assert read is not None
    plan = choose(len(arguments.embeddings), len(arguments.columns), torch.device("cpu"))
    found = select(read, pair_loss, k, plan)
    if not found:
        return set()
    chosen = hardest(read, pair_loss, joined(list(found.values())), max(k.values()))
    sloped = chosen.slope != 0
    i, j = (part[sloped].tolist() for part in read.numbered(chosen.pairs))
    return set(zip(i, j, strict=True))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_selected_pairs(kind: str) -> None:
    turns = zip(cycle(PLANS[:-1]), cycle(LIMITS), cycle(PAIR_LOSSES), strict=True)
    for number, situation in enumerate(SITUATIONS):
        of = any_case(kind, situation, number, n=(16, 23)[number % 2])
        arguments = arguments_of(of, torch.float32)
        for k, sign in product((1, 2, 8, 17), (None, True, False)):
            plan, few, pair_loss = next(turns)
            limit(few)
            batch = plain_batch(dm.NPair(), arguments)
            keep = None if sign is None else (batch.negative if sign else batch.positive)
            ignored = arguments.ignore if keep is None else keep
            if keep is not None and arguments.ignore is not None:
                ignored = keep | arguments.ignore
            loss = dm.RobustPairLoss(pair_loss, dm.TopK(k=k))
            solution = loss.solve(plain_batch(loss, replaced(arguments, ignored)))
            pairs = (solution.slope != 0).nonzero().tolist()
            wanted = dict.fromkeys((True, False) if sign is None else (sign,), k)
            try:
                with planned(**plan):
                    found = selected(arguments, pair_loss, wanted)
            except TooManyTiesError:  # then the plain path is gone
                assert plan["spare"] < 10**6
                continue
            assert found == {tuple(pair) for pair in pairs}


def replaced(arguments: Arguments, ignore: Tensor | None) -> Arguments:
    names = ("embeddings", "labels", "similar", "reference", "reference_labels")
    return Arguments(**{name: getattr(arguments, name) for name in names}, ignore=ignore)


ANY = st.tuples(
    st.sampled_from(sorted(SETS)),
    st.sampled_from(FORMS),
    st.sampled_from(EVERY_KIND),
    st.sampled_from(SITUATIONS),
    st.integers(0, 2**32 - 1),
    st.integers(1, 20),
    st.sampled_from(DTYPES),
    st.sampled_from(PLANS),
    st.sampled_from(LIMITS),
    st.booleans(),
)


def check_any(
    name: str,
    form: tuple[Any, str],
    kind: str,
    situation: str,
    seed: int,
    n: int,
    dtype: torch.dtype,
    plan: Any,
    few: tuple[int, int, int, int],
    normalize: bool,
) -> None:
    limit(few)
    normalize = normalize or kind == "scales of 1e30"
    check(name, form, any_case(kind, situation, seed, n), holds(kind, dtype), plan, normalize)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ANY)
def test_any_call(call: tuple[Any, ...]) -> None:
    check_any(*call)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(ANY)
def test_any_call_of_many(call: tuple[Any, ...]) -> None:
    check_any(*call)
