"""Low precision loses no pair that could count: its bounds are bounds, its lists are whole."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drometric.engine.arguments import Arguments
from drometric.engine.layout import Layout, Tile, read_layout
from drometric.engine.plan import Plan
from drometric.engine.rows import read_rows
from drometric.engine.screening import Candidates, Screen, above, hardest_candidates, screen

SCREENS = (torch.bfloat16, torch.float32, torch.float64)
KINDS = ("random", "one scale each", "parallel", "midpoints", "sparse")


def vectors(kind: str, n: int, d: int, generator: torch.Generator) -> Tensor:
    """Rows in float64."""
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if kind == "one scale each":
        x *= 10.0 ** torch.empty(n, 1, dtype=torch.float64).uniform_(-9, 9, generator=generator)
    if kind == "parallel":  # nothing cancels, all errors may have one sign
        x = x[:1].abs() * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    if kind == "sparse":
        x *= torch.rand(n, d, generator=generator, dtype=torch.float64) < 0.1
    return x


def beside_midpoints(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Entries just above or below the middle of two neighbours in bfloat16, all positive."""
    step = torch.randint(0, 128, (n, d), generator=generator)
    side = torch.randint(0, 2, (n, d), generator=generator) * 2 - 1
    return (1 + (step + 0.5) / 128 + side * 2.0**-22).to(torch.float64)


def layout_of(x: Tensor, y: Tensor | None, *, normalize: bool) -> Layout | None:
    labels = torch.zeros(len(x), dtype=torch.int64)
    others = None if y is None else torch.zeros(len(y), dtype=torch.int64)
    arguments = Arguments(x, labels, reference=y, reference_labels=others)
    return read_layout(arguments, normalize=normalize)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 600),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.booleans(),
    st.booleans(),
    st.integers(-8, 8),
    st.integers(0, 2**31),
)
def test_no_product_is_farther_off_than_the_bound(
    kind: str, d: int, dtype: torch.dtype, normalize: bool, across: bool, scale: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    make = beside_midpoints if kind == "midpoints" else lambda *a: vectors(kind, *a)
    x, y = make(9, d, generator), make(7, d, generator)
    if dtype != torch.float16:
        x *= 10.0**scale
    x, y = x.clamp(-60000, 60000).to(dtype), y.clamp(-60000, 60000).to(dtype)
    read = layout_of(x, y if across else None, normalize=normalize)
    if read is None:
        return
    exact_rows = read_rows(read.rows.source, normalize=normalize)
    exact_columns = read_rows(read.columns.source, normalize=normalize)
    exact = exact_rows.similarity(exact_columns)
    for precision in SCREENS:
        screened = screen(read, precision)
        assert_bounded(screened, screened.rows @ screened.columns.T, exact)


def assert_bounded(screened: Screen, product_: Tensor, exact: Tensor) -> None:
    off = (product_.double() - exact).abs()
    allowed = screened.error + screened.unit * exact.abs()
    assert bool((off <= allowed).all()), f"off {off.max():.3e}, allowed {allowed.min():.3e}"


def test_the_bound_is_no_larger_than_it_has_to_be() -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    read = layout_of(x, None, normalize=True)
    assert read is not None
    assert screen(read, torch.float64).error < 1e-13
    assert screen(read, torch.float32).error < 2e-5
    assert screen(read, torch.bfloat16).error < 0.02


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.one_of(st.just(-math.inf), st.floats(-2, 2)),
    st.integers(0, 2**31),
)
def test_above_is_the_plain_comparison(
    rows: int, columns: int, dtype: torch.dtype, cut: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(rows, columns, generator=generator).to(dtype)
    keys[torch.rand(rows, columns, generator=generator) < 0.2] = -math.inf
    row, column = above(keys, cut)
    expected = (keys >= cut) & keys.isfinite()
    found = torch.zeros_like(expected)
    found[row, column] = True
    assert len(row) == int(expected.sum())
    assert torch.equal(found, expected)


def keys_in_order(order: str, n: int, generator: torch.Generator) -> Tensor:
    keys = torch.randn(n * n, generator=generator)
    if order == "tied":
        keys = keys.round()
    if order == "equal":
        keys = torch.zeros(n * n)
    if order in ("increasing", "decreasing"):
        keys = keys.sort(descending=order == "decreasing").values
    if order == "hidden":
        keys[1:][torch.rand(n * n - 1, generator=generator) < 0.9] = -math.inf
    return keys.view(n, n)


@pytest.mark.parametrize("order", ["random", "tied", "equal", "increasing", "decreasing", "hidden"])
@pytest.mark.parametrize("k", [1, 7, 100, 10**6])
def test_candidates_hold_the_largest_with_all_that_tie(order: str, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    nothing = torch.empty(0, 0)
    for n, (height, width) in product((5, 64, 100), ((1, 1), (7, 5), (16, 64), (100, 100))):
        if (height, width) == (1, 1) and n > 5:
            continue
        keys = keys_in_order(order, n, generator)
        of = Candidates(k, Screen(nothing, nothing, 0.0, 0.0), spare=10**6)
        for top, left in product(range(0, n, height), range(0, n, width)):
            rows, columns = slice(top, min(top + height, n)), slice(left, min(left + width, n))
            of.look(Tile(rows, columns, False, None), keys[rows, columns].clone())
        assert not of.overflown
        pairs = of.pairs()
        flat = keys.flatten()
        finite = flat[flat.isfinite()]
        kth = finite.topk(min(k, len(finite))).values.amin()
        expected = (keys >= kth) & keys.isfinite()
        found = torch.zeros(n, n, dtype=torch.bool)
        found[pairs.row, pairs.column] = True
        assert len(pairs) == int(found.sum())
        assert bool((pairs.row.diff() >= 0).all())
        assert torch.equal(found, expected)


def test_too_many_candidates_are_none() -> None:
    x = torch.ones(40, 3)
    arguments = Arguments(x, torch.arange(40))
    read = read_layout(arguments, normalize=True)
    assert read is not None
    tie = len(x) * (len(x) - 1) // 2
    for spare, fits in ((0, False), (100, False), (tie - 4, False), (tie - 3, True)):
        for tile in ((7, 5), (64, 64)):
            plan = Plan("tiles", tile, tile, torch.float32, spare)
            found = hardest_candidates(read, {False: 3}, plan, torch.float32)
            assert (found is not None) == fits
            if found is not None:
                assert len(found[False]) == tie


def test_a_finer_screen_tells_apart_what_a_coarse_one_cannot() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.ones(60, 8) + 1e-3 * torch.randn(60, 8, generator=generator)
    read = read_layout(Arguments(x, torch.arange(60)), normalize=True)
    assert read is not None
    plan = Plan("tiles", (64, 64), (64, 64), torch.float32, 200)
    coarse, fine = (
        hardest_candidates(read, {False: 10}, plan, dtype)
        for dtype in (torch.bfloat16, torch.float64)
    )
    assert coarse is None
    assert fine is not None
    assert len(fine[False]) == 10
