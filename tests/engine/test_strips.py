"""Strips of any height give what the whole batch gives, draws included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from batches import KINDS, SITUATIONS, Case, case
from every_loss import BASELINES, FAMILIES, MINERS, one_of
from torch import Tensor

import drometric as dm
from drometric.baselines import triplet
from drometric.engine import rows, strips
from drometric.engine.anchor_loss import AnchorLoss
from drometric.engine.arguments import Arguments
from drometric.engine.batch import read_batch, read_examples
from drometric.engine.outcome import Outcome
from drometric.engine.strips import solve_by_strips
from drometric.mining import Mined
from drometric.uncertainty.draw import draw

HEIGHTS = (1, 2, 3, 7, 100)
PER_ANCHOR = [f for f in FAMILIES if f in BASELINES or f.partition("+")[2] in MINERS]


def loss_of(family: str, **options: Any) -> AnchorLoss:
    """A loss whose miner, if it draws, starts from the same state each time."""
    loss = one_of(family, **options)
    assert isinstance(loss, AnchorLoss)
    return loss


def plainly(loss: AnchorLoss, arguments: Arguments) -> Outcome:
    """What follows from the slopes in all similarities at once."""
    batch = read_batch(arguments, normalize=loss.normalize)
    solution = loss.solve(batch)
    slope = solution.slope + solution.slope.T if batch.within else solution.slope
    of_rows = batch.rows.pull_back(slope @ batch.columns.vector)
    of_columns = batch.columns.pull_back(solution.slope.T @ batch.rows.vector)
    return Outcome(solution.value, of_rows, None if batch.within else of_columns)


def assert_same(found: Outcome, expected: Outcome, dtype: torch.dtype) -> None:
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert found.value.dtype == torch.float64
    torch.testing.assert_close(found.value, expected.value, rtol=1e-12, atol=1e-12)
    for name in ("gradient", "reference_gradient"):
        gradient, wanted = getattr(found, name), getattr(expected, name)
        assert (gradient is None) == (wanted is None)
        if wanted is not None:
            assert gradient.dtype == dtype
            largest = float(wanted.abs().max()) if wanted.numel() else 0.0
            error = tolerance * max(largest, 1.0)
            torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=error)


def drawable(kind: str, situation: str, seed: int) -> Case:
    """A case of at least two dimensions, which DistanceWeighted needs."""
    while (of := case(kind, situation, seed)).x.shape[1] < 2:
        seed += 1000
    return of


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("family", PER_ANCHOR)
def test_strips_of_any_height(family: str, situation: str) -> None:
    # Every other kind, each kind in some of the situations.
    for seed, kind in enumerate(KINDS[SITUATIONS.index(situation) % 2 :: 2]):
        of = drawable(kind, situation, seed)
        dtype = (torch.float64, torch.float32)[seed % 2]
        arguments = Arguments(**of.tensors(dtype))
        expected = plainly(loss_of(family), arguments)
        for height in HEIGHTS:
            found = solve_by_strips(loss_of(family), arguments, at_once=height)
            assert_same(found, expected, dtype)


@pytest.mark.parametrize("family", [f for f in PER_ANCHOR if "distance" not in f])
def test_strips_of_rows_that_are_not_normalised(family: str) -> None:
    for situation in ("labels", "reference"):
        arguments = Arguments(**case("clustered", situation, 5).tensors(torch.float64))
        expected = plainly(loss_of(family, normalize=False), arguments)
        for height in HEIGHTS:
            found = solve_by_strips(loss_of(family, normalize=False), arguments, at_once=height)
            assert_same(found, expected, torch.float64)


def test_the_default_height(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = Arguments(**case("clustered", "labels", 5).tensors(torch.float64))
    expected = plainly(dm.NPair(), arguments)
    for entries in (2**22, 30, 1):
        monkeypatch.setattr(strips, "SIMILARITIES_AT_ONCE", entries)
        assert_same(solve_by_strips(dm.NPair(), arguments), expected, torch.float64)


@pytest.mark.parametrize("triplets", ["all", "hard", "semi-hard"])
def test_triplets_a_few_at_a_time(triplets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = dm.Triplet(triplets=triplets)
    arguments = Arguments(**case("random", "imbalanced", 5).tensors(torch.float64))
    expected = plainly(loss, arguments)
    monkeypatch.setattr(triplet, "TRIPLETS_AT_ONCE", 20)
    assert_same(solve_by_strips(loss, arguments, at_once=4), expected, torch.float64)


def test_only_the_gradients_that_are_wanted() -> None:
    across = Arguments(**case("random", "reference", 5).tensors(torch.float64))
    both = solve_by_strips(dm.NPair(), across, at_once=4)
    for wanted in ((True, False), (False, True), (False, False)):
        found = solve_by_strips(dm.NPair(), across, at_once=4, wanted=wanted)
        assert torch.equal(found.value, both.value)
        gradients = (found.gradient, found.reference_gradient)
        expected = (both.gradient, both.reference_gradient)
        for gradient, full, is_wanted in zip(gradients, expected, wanted, strict=True):
            assert (gradient is not None) == is_wanted
            assert full is not None
            assert gradient is None or torch.equal(gradient, full)
    within = Arguments(**case("random", "labels", 5).tensors(torch.float64))
    found = solve_by_strips(dm.NPair(), within, wanted=(False, False))
    assert found.gradient is None
    assert found.reference_gradient is None


@pytest.mark.parametrize("size", [(0, None), (0, 3), (3, 0), (0, 0), (1, None)], ids=str)
@pytest.mark.parametrize("family", PER_ANCHOR)
def test_strips_of_batches_without_pairs(family: str, size: tuple[int, int | None]) -> None:
    count, others = size
    given: dict[str, Tensor] = {
        "embeddings": torch.ones(count, 3),
        "labels": torch.zeros(count, dtype=torch.int64),
    }
    if others is not None:
        given["reference"] = torch.ones(others, 3)
        given["reference_labels"] = torch.zeros(others, dtype=torch.int64)
    found = solve_by_strips(loss_of(family), Arguments(**given))
    assert found.value == 0
    assert found.gradient is not None
    assert torch.equal(found.gradient, torch.zeros(count, 3))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_strip_is_some_rows_of_the_batch(situation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, kind in enumerate(KINDS):
        arguments = Arguments(**case(kind, situation, seed).tensors(torch.float64))
        for normalize in (True, False):
            whole = read_batch(arguments, normalize=normalize)
            monkeypatch.setattr(rows, "ENTRIES_AT_ONCE", 30)
            examples = read_examples(arguments, normalize=normalize)
            for start in range(len(whole.similarity)):
                anchors = slice(start, min(start + 3, len(whole.similarity)))
                strip = examples.strip(anchors)
                assert strip.first_row == start
                for name in ("similarity", "positive", "negative", "unordered", "squared_distance"):
                    assert torch.equal(getattr(strip, name), getattr(whole, name)[anchors]), name
                if arguments.labels is not None:
                    assert strip.labels is not None
                    assert torch.equal(strip.labels, arguments.labels[anchors])
            monkeypatch.undo()


@pytest.mark.parametrize("miner", MINERS)
def test_miners_give_the_rows_of_a_strip(miner: str) -> None:
    for seed, situation in enumerate(SITUATIONS):
        arguments = Arguments(**drawable("clustered", situation, seed).tensors(torch.float64))
        whole = MINERS[miner]().mine(read_batch(arguments, normalize=True))
        examples, mining = read_examples(arguments, normalize=True), MINERS[miner]()
        assert mining.by_anchor
        parts = [
            mining.mine(examples.strip(slice(start, min(start + 3, len(whole.positive)))))
            for start in range(0, len(whole.positive), 3)
        ]
        for name in Mined._fields:
            assert torch.equal(
                torch.cat([getattr(part, name) for part in parts]), getattr(whole, name)
            )


def test_draws_of_some_rows_after_others_are_those_of_all() -> None:
    start = torch.Generator().manual_seed(0)
    weight = torch.rand(40, 9, generator=start, dtype=torch.float64)
    count = torch.randint(0, 60, (40,), generator=start)
    count[5:9] = 0
    row, column = draw(weight, count, torch.Generator().manual_seed(3))
    assert torch.equal(torch.bincount(row, minlength=40), count)
    for height in (1, 3, 7):
        generator, columns = torch.Generator().manual_seed(3), []
        for top in range(0, 40, height):
            some = slice(top, top + height)
            columns.append(draw(weight[some], count[some], generator)[1])
        assert torch.equal(torch.cat(columns), column)


class Counting:
    """A user's miner that takes all pairs and remembers how many anchors it was shown."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def mine(self, batch: Any) -> Mined:
        self.seen.append(len(batch.positive))
        return Mined(batch.positive, batch.negative)


class CountingByAnchor(Counting):
    by_anchor = True


@pytest.mark.parametrize(
    "make",
    [
        lambda miner: dm.MinedPairLoss(dm.Margin(), miner),
        lambda miner: dm.MultiSimilarity(miner=miner),
        lambda miner: dm.LiftedStructure(miner=miner),
    ],
)
def test_a_users_miner_sees_the_whole_batch_unless_it_says_otherwise(
    make: Callable[[Any], AnchorLoss],
) -> None:
    arguments = Arguments(**case("random", "labels", 5).tensors(torch.float64))
    for miner, seen in ((Counting(), [11]), (CountingByAnchor(), [4, 4, 3])):
        found = solve_by_strips(make(miner), arguments, at_once=4)
        assert miner.seen == seen
        assert_same(found, plainly(make(Counting()), arguments), torch.float64)
