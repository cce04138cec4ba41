"""The similarities of drometric.engine.rows: exact but for float64, and of no order of summation.

That is why which pairs are the hardest depends on no thread count, tile or permutation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from drometric.engine.rows import read_rows, square_root

DIMENSIONS = (1, 2, 3, 64, 512, 2048)
ULP = 2.0**-53  # half a unit in the last place of 1


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def similarity(x: Tensor, y: Tensor | None = None, *, normalize: bool = True) -> Tensor:
    columns = x if y is None else y
    return read_rows(x, normalize=normalize).similarity(read_rows(columns, normalize=normalize))


def exact_products(x: Tensor, y: Tensor) -> list[list[Fraction]]:
    """Inner products as integers: rows times 2^1100 are whole, and integers never round."""

    def whole(z: Tensor) -> list[list[int]]:
        return [[int(Fraction(v) * 2**1100) for v in row] for row in z.double().tolist()]

    return [
        [Fraction(sum(p * q for p, q in zip(a, b, strict=True)), 2**2200) for b in whole(y)]
        for a in whole(x)
    ]


def cosine(dot: Fraction, a: Fraction, b: Fraction) -> Fraction:
    """dot / sqrt(a b) to 50 digits."""
    with localcontext() as context:
        context.prec = 50
        squares = a * b
        root = (Decimal(squares.numerator) / Decimal(squares.denominator)).sqrt()
        return Fraction(Decimal(dot.numerator) / Decimal(dot.denominator) / root)


def batches(d: int) -> dict[str, Tensor]:
    x = rows(4, d, seed=d)
    near = x[:1] + 1e-9 * rows(4, d, seed=1)
    uneven = x * 10.0 ** torch.linspace(-12, 0, d, dtype=torch.float64)
    # Two orthogonal rows but for the last digits: nearly all of the sum cancels.
    opposite = torch.cat([x[:2], x[:2].flip(1) * (-1.0) ** torch.arange(d)])
    return {"random": x, "near": near, "uneven": uneven, "opposite": opposite, "equal": x[:1] + 0}


@pytest.mark.parametrize("d", DIMENSIONS)
def test_cosines_are_accurate(d: int) -> None:
    for name, x in batches(d).items():
        dots, found = exact_products(x, x), similarity(x).tolist()
        for i in range(len(x)):
            for j in range(len(x)):
                exact = cosine(dots[i][j], dots[i][i], dots[j][j])
                # A unit row is rounded once per entry (and its length once): 3 such errors a
                # row at most, and those of the final sums; in all not the d of a plain sum.
                assert abs(Fraction(found[i][j]) - exact) <= 8 * ULP, (name, i, j)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_inner_products_are_accurate(d: int) -> None:
    for name, x in batches(d).items():
        dots, found = exact_products(x, x), similarity(x, normalize=False).tolist()
        lengths = [float(dots[i][i]) ** 0.5 for i in range(len(x))]
        for i in range(len(x)):
            for j in range(len(x)):
                error = abs(float(Fraction(found[i][j]) - dots[i][j]))
                # Only the last sums round here: two units of |x| |y|.
                assert error <= 4 * ULP * lengths[i] * lengths[j], (name, i, j)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_of_few_digits_are_widened_first(dtype: torch.dtype) -> None:
    x = rows(5, 64).to(dtype)
    assert torch.equal(similarity(x), similarity(x.double()))
    dots = exact_products(x, x)
    found = similarity(x, normalize=False)
    error = max(abs(float(Fraction(found[i, j].item()) - dots[i][j])) for i, j in np.ndindex(5, 5))
    assert error <= 4 * ULP * max(float(dots[i][i]) for i in range(5))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_equal_rows_are_equally_similar_wherever_they_stand(d: int, normalize: bool) -> None:
    x = rows(6, d)[torch.arange(37) % 6]
    s = similarity(x, normalize=normalize)
    assert torch.equal(s, s[:6, :6].repeat(7, 7)[:37, :37])
    assert torch.equal(s, s.T)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_no_order_of_summation_matters(d: int, normalize: bool) -> None:
    x = rows(70, d, seed=3) * 10.0 ** rows(70, 1, seed=4)
    s = similarity(x, normalize=normalize)
    generator = torch.Generator().manual_seed(5)
    order = torch.randperm(70, generator=generator)
    assert torch.equal(similarity(x[order], normalize=normalize), s[order][:, order])
    for _ in range(3):
        columns = torch.randperm(d, generator=generator)
        assert torch.equal(similarity(x[:, columns], normalize=normalize), s)
    for count in (1, 2):
        with threads(count):
            assert torch.equal(similarity(x, normalize=normalize), s)


def test_a_plain_product_would_not_do() -> None:
    # Else the tests above would say nothing.
    x = torch.nn.functional.normalize(rows(70, 512, seed=3))
    plain = x @ x.T
    columns = torch.randperm(512, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(x[:, columns] @ x[:, columns].T, plain)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_every_part_of_the_batch_gives_its_part(d: int, normalize: bool) -> None:
    x = rows(40, d, seed=6)
    s = similarity(x, normalize=normalize)
    for i in (0, 1, 17, 39):  # one row against all, all against one, one pair
        assert torch.equal(similarity(x[i : i + 1], x, normalize=normalize), s[i : i + 1])
        assert torch.equal(similarity(x, x[i : i + 1], normalize=normalize), s[:, i : i + 1])
        assert torch.equal(similarity(x[i:][:1], x[3:4], normalize=normalize), s[i : i + 1, 3:4])
    for tile in (3, 16):
        assert torch.equal(similarity(x[tile:], x[:tile], normalize=normalize), s[tile:, :tile])


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-99, 2.0**99, 2.0**1000])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_cosines_ignore_powers_of_two(d: int, scale: float) -> None:
    x = rows(9, d)
    assert torch.equal(similarity(x * scale), similarity(x))
    mixed = x * torch.tensor([[scale], [1.0], [1 / scale]], dtype=torch.float64).repeat(3, 1)
    assert torch.equal(similarity(mixed), similarity(x))


@pytest.mark.parametrize("scale", [1e-320, 1e-310, 1e-200, 1e-30, 1e30, 1e200, 1e307])
def test_no_scale_overflows_or_vanishes(scale: float) -> None:
    x = rows(4, 64) * scale  # at 1e-320 a row's entries have some ten bits left
    dots = exact_products(x, x)
    found = similarity(x).tolist()
    for i, j in np.ndindex(4, 4):
        assert abs(Fraction(found[i][j]) - cosine(dots[i][j], dots[i][i], dots[j][j])) <= 8 * ULP


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_rows_of_any_scale(scale: float) -> None:
    x = (rows(4, 64) * scale).float()
    assert torch.equal(similarity(x), similarity(x.double()))
    assert similarity(x).diagonal().allclose(torch.ones(4, dtype=torch.float64), atol=8 * ULP)


def test_a_row_of_denormals_has_a_direction() -> None:
    tiny = 5e-324
    x = torch.tensor([[tiny, 0.0], [tiny, tiny], [-3 * tiny, 4 * tiny]], dtype=torch.float64)
    expected = torch.tensor(
        [[1, 0.5**0.5, -0.6], [0.5**0.5, 1, 0.02**0.5], [-0.6, 0.02**0.5, 1]], dtype=torch.float64
    )
    assert torch.allclose(similarity(x), expected, rtol=0, atol=8 * ULP)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_zero_row_is_similar_to_nothing(normalize: bool) -> None:
    x = rows(4, 5)
    x[2] = 0.0
    rest = torch.tensor([0, 1, 3])
    s = similarity(x, normalize=normalize)
    assert (s[2] == 0).all()
    assert (s[:, 2] == 0).all()
    assert torch.equal(s[rest][:, rest], similarity(x[rest], normalize=normalize))
    lengths = read_rows(x, normalize=normalize).squared_length()[:, 0]
    assert lengths[2] == 0
    assert torch.equal(lengths, s.diagonal())


def test_square_roots_are_correctly_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 64
    x[:4] = torch.tensor([0.0, 1.0, 2.0, 4.0])
    expected = torch.tensor([math.sqrt(v) for v in x.tolist()], dtype=torch.float64)
    assert torch.equal(square_root(x), expected)
    # As on machines where torch's own root is off by one in the last place, here always.
    off = Tensor.sqrt
    for towards in (0.0, 100.0):
        end = torch.tensor(towards, dtype=torch.float64)
        monkeypatch.setattr(Tensor, "sqrt", lambda x, end=end: off(x).nextafter(end))
        assert torch.equal(square_root(x)[1:], expected[1:])
