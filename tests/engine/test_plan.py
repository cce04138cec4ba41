"""How a call is computed, and that nothing but its time depends on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from every_loss import FAMILIES, one_of

import drometric as dm
from drometric.engine import plan
from drometric.engine.plan import choose, planned, screening_dtype

CPU = torch.device("cpu")
LARGE = (10**5, 10**5)


@pytest.fixture
def _usual_threads() -> Iterator[None]:
    usual = torch.get_num_threads()
    yield
    torch.set_num_threads(usual)


def test_plans_nest() -> None:
    before = choose(1000, 1000, CPU)
    with planned(tile=(3, 4), spare=5):
        with planned(tile=(1, 2), path="dense"):
            inner = choose(1000, 1000, CPU)
            assert (inner.tile, inner.spare, inner.path) == ((1, 2), 5, "dense")
        outer = choose(1000, 1000, CPU)
        assert (outer.tile, outer.spare, outer.path) == ((3, 4), 5, before.path)
    assert choose(1000, 1000, CPU) == before


def test_an_exception_ends_a_plan() -> None:
    before = choose(1000, 1000, CPU)

    def fail() -> None:
        with planned(path="plain"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert choose(1000, 1000, CPU) == before


def test_a_name_that_no_plan_has_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a plan has no \['tiles'\]; it has \['path', 'tile'"):
        planned(tiles=(1, 1)).__enter__()


def test_small_and_large_batches_go_different_ways() -> None:
    assert choose(20, 20, CPU).path == "dense"
    assert choose(*LARGE, CPU).path == "tiles"
    for size in (1, 2, 161, 100_000):
        height, width = choose(size, size, CPU).tile
        assert height >= 1
        assert width >= 1


def test_the_screen_is_measured_once_and_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype] = []

    def seconds(x: torch.Tensor, out: torch.Tensor) -> float:
        measured.append(x.dtype)
        return 1.0

    monkeypatch.setattr(plan, "_seconds", seconds)
    screening_dtype.cache_clear()
    try:
        for _ in range(3):
            choose(*LARGE, CPU)
        once = len(measured)
        assert set(measured) == {torch.float32, torch.bfloat16}
        choose(10**6, 10**5, CPU)
        assert len(measured) == once
        screening_dtype.cache_clear()
        for screen in (torch.float32, torch.bfloat16):
            with planned(screen=screen):
                assert choose(*LARGE, CPU).screen == screen
        assert len(measured) == once
    finally:
        screening_dtype.cache_clear()


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_bfloat16_has_to_be_twice_as_fast(
    faster: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {torch.float32: 1.0, torch.bfloat16: 0.49 if faster == torch.bfloat16 else 0.51}
    monkeypatch.setattr(plan, "_seconds", lambda x, out: times[x.dtype])
    screening_dtype.cache_clear()
    try:
        assert choose(*LARGE, CPU).screen == faster
    finally:
        screening_dtype.cache_clear()


def examples(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes of five, some rows there twice."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=generator)
    x[-5:] = x[:5]
    return x, torch.arange(rows) // 5


@pytest.mark.usefixtures("_usual_threads")
@pytest.mark.parametrize("screen", [torch.float32, torch.bfloat16])
def test_the_hardest_pairs_depend_on_no_number_of_threads(screen: torch.dtype) -> None:
    x, labels = examples(600)
    for loss in (
        dm.RobustPairLoss(dm.Margin(), dm.TopK(per_example=2.0)),
        dm.RobustPairLoss(dm.Binomial(), dm.TopK(k=11)),
    ):
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with planned(path="tiles", screen=screen):
                found.append(loss.touched(x, labels))
        (value, rows, gradient), (other_value, other_rows, other_gradient) = found
        assert torch.equal(rows, other_rows)
        torch.testing.assert_close(value, other_value, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient, other_gradient, rtol=1e-5, atol=1e-8)


def bits(family: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, labels = examples(rows)
    x.requires_grad_()
    value = one_of(family, rows)(x, labels)
    value.backward()
    assert x.grad is not None
    return value.detach(), x.grad


@pytest.mark.parametrize(("rows", "path"), [(30, "dense"), (200, "tiles")])
@pytest.mark.parametrize("family", [family for family in FAMILIES if "+" not in family])
def test_the_same_call_gives_the_same_bits(family: str, rows: int, path: str) -> None:
    with planned(path=path):
        first = bits(family, rows)
        for other in ("top-8", "kl", "ms"):
            bits(other, rows + 3)
        again = bits(family, rows)
    for then, now in zip(first, again, strict=True):
        assert torch.equal(then, now)


class Valley:
    """A negative pair costs the more the farther its similarity is from 0.1."""

    def positive(self, similarity):
        return 1 - similarity, -torch.ones_like(similarity)

    def negative(self, similarity):
        away = similarity - 0.1
        return away**2, 2 * away


class HonestValley(Valley):
    monotone = False


def test_a_pair_loss_that_says_it_is_not_monotone_goes_the_plain_way() -> None:
    embeddings = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) // 3

    def value(pair_loss: object, path: str) -> float:
        with planned(path=path):
            return float(dm.RobustPairLoss(pair_loss, dm.BalancedTopK(k=40))(embeddings, labels))

    plain = value(HonestValley(), "plain")
    assert value(HonestValley(), "tiles") == plain
    # Whose hardest pairs are looked for among the most similar ones only:
    assert value(Valley(), "tiles") != plain


@pytest.mark.parametrize(
    "choice",
    [
        {"path": "tile"},
        {"tile": 7},
        {"tile": (0, 5)},
        {"screening_tile": (5,)},
        {"screen": "bf16"},
        {"screen": torch.float16},
        {"spare": -1},
    ],
    ids=str,
)
def test_a_choice_that_no_plan_can_have_is_named(choice: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(choice))} must be"), planned(**choice):
        pass


class Logarithm:
    """Has no largest loss: a positive pair at -1 or a negative one at 1 costs without end."""

    def positive(self, similarity):
        return -((1 + similarity) / 2).log(), -1 / (1 + similarity)

    def negative(self, similarity):
        return -((1 - similarity) / 2).log(), 1 / (1 - similarity)


@pytest.mark.parametrize(
    "uncertainty",
    [dm.Uniform(), dm.KL(0.1), dm.PerAnchorKL(0.5, 0.5), dm.ChiSquare(1.0), dm.TopK(k=50)],
    ids=repr,
)
def test_a_pair_loss_without_a_bound_is_computed_all_the_same(uncertainty: object) -> None:
    embeddings = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    loss, labels = dm.RobustPairLoss(Logarithm(), uncertainty), torch.arange(60) // 3
    with planned(path="plain"):
        plain = float(loss(embeddings, labels))
    with planned(path="tiles"):
        assert float(loss(embeddings, labels)) == pytest.approx(plain, rel=1e-6)
