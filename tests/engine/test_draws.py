"""Pairs drawn from tiles come as often as p* says, whatever the tiles are."""

from __future__ import annotations

import pytest
import torch
from batches import case

import drometric as dm
from drometric.engine.arguments import Arguments
from drometric.engine.draws import drawn_pairs
from drometric.engine.layout import read_layout
from drometric.engine.plan import choose, planned

DRAWS = 20_000


def drawn(arguments: Arguments, gamma: float, drop: bool, seed: int, tile: tuple[int, int]):
    """How often each pair is drawn, as a matrix."""
    rows, columns = len(arguments.embeddings), len(arguments.columns)
    layout = read_layout(arguments, normalize=True)
    with planned(path="tiles", tile=tile, screen=torch.float32):
        plan = choose(rows, columns, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    found = drawn_pairs(layout, dm.Margin(), gamma, DRAWS, generator, plan, drop=drop)
    judged, often = found
    counts = torch.zeros(rows, columns, dtype=torch.float64)
    counts[layout.numbered(judged.pairs)] = often.double()
    return counts


@pytest.mark.parametrize("tile", [(5, 4), (1, 7), (64, 64)])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("gamma", [0.003, 0.05, 0.5, float("inf")])
@pytest.mark.parametrize("situation", ["labels", "multilabel", "ignore", "reference"])
def test_frequencies_are_those_of_p(
    situation: str, gamma: float, drop: bool, tile: tuple[int, int]
) -> None:
    given = case("random", situation, 4).tensors(torch.float32)
    arguments = Arguments(**{name: tensor.detach() for name, tensor in given.items()})
    zero_loss = "drop" if drop else "keep"
    i, j, weight = dm.RobustPairLoss(dm.Margin(), dm.KL(gamma), zero_loss=zero_loss).weights(
        **given
    )
    p = torch.zeros(len(arguments.embeddings), len(arguments.columns), dtype=torch.float64)
    p[i, j] = weight.double()

    counts = drawn(arguments, gamma, drop, seed=8, tile=tile)
    assert int(counts.sum()) == DRAWS
    # Six standard deviations of a binomial count, and one more for counts of a few.
    assert bool(((counts - DRAWS * p).abs() <= 6 * (DRAWS * p * (1 - p)).sqrt() + 1).all())
    assert bool((counts[p == 0] == 0).all())
    # And all counts together: χ² has mean and half its variance equal to its freedom.
    likely = DRAWS * p >= 5
    chi_square = float(((counts - DRAWS * p)[likely].square() / (DRAWS * p[likely])).sum())
    freedom = float(likely.sum())
    assert chi_square <= freedom + 6 * (2 * freedom) ** 0.5


def test_the_same_state_gives_the_same_draws() -> None:
    given = case("random", "labels", 4).tensors(torch.float32)
    arguments = Arguments(**{name: tensor.detach() for name, tensor in given.items()})
    first, second, other = (drawn(arguments, 0.1, False, seed, (5, 4)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
