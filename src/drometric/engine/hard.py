"""Hard selection (TopK, BalancedTopK, Simplex, γ = 0): looking at all pairs once, using few.

A short list of candidates is found in low precision, their losses are computed in float64, and
where float64's own rounding could decide, with the similarities of `rows`. So the pairs selected
are the ones that `reference` selects; the gradient is a sum over them alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from drometric.engine.judged import Judged, judge, judge_exactly
from drometric.engine.layout import Layout
from drometric.engine.pair_list import by_place
from drometric.engine.plan import Plan
from drometric.engine.screening import hardest_candidates
from drometric.pair_losses import PairLoss


class TooManyTiesError(Exception):
    """No screen could tell the pairs apart: they have to be compared one by one."""


def select(
    layout: Layout, pair_loss: PairLoss, k: dict[bool, int], plan: Plan
) -> dict[bool, Judged]:
    """Pairs of each sign that hold its k hardest, judged."""
    listed = {} if layout.positives is None else {True: layout.positives}
    wanted = {sign: k[sign] for sign in k if sign not in listed}
    for dtype in _screens(plan.screen, layout):
        found = hardest_candidates(layout, wanted, plan, dtype)
        if found is not None:
            lists = {**listed, **found}
            return {
                sign: judge(layout, pair_loss, pairs, sign)
                for sign, pairs in lists.items()
                if sign in k and len(pairs)
            }
    raise TooManyTiesError


def _screens(first: torch.dtype, layout: Layout) -> list[torch.dtype]:
    """Precisions from `first` on, each of which tells more pairs apart than the one before."""
    own = layout.rows.vector.dtype
    ladder = [torch.bfloat16, torch.float32, torch.float64]
    if own == torch.float64:
        ladder.remove(torch.float32)
    return ladder[ladder.index(first) :] if first in ladder else [torch.float64]


def hardest(layout: Layout, pair_loss: PairLoss, found: Judged, k: int) -> Judged:
    """The k hardest of the pairs found, ties by the user's numbering.

    Of pairs at a flat minimum of their loss, which have neither value nor slope to give, it may
    leave out some.
    """
    k = min(k, len(found))
    kth = found.loss.topk(k, sorted=False).values.amin()
    reach = _reach(layout, found, kth)
    sure = found.loss > kth + reach
    border = ~sure & (found.loss >= kth - reach) & (found.slope != 0)
    counts = torch.stack((sure.sum(), border.sum(), kth <= reach)).tolist()
    needed = k - counts[0]
    if counts[1] and (counts[1] != needed or counts[2]):
        found, exact = _exactly_at(layout, pair_loss, found, border)
        border[border.clone()] = _first(exact.loss, *layout.numbered(exact.pairs), needed)
    return found[sure | border]


def maximisers(layout: Layout, pair_loss: PairLoss, found: Judged) -> Judged:
    """The hardest of the pairs found, and all that tie with it."""
    found = with_exact_top(layout, pair_loss, found)
    return found[found.loss == found.loss.amax()]


def with_exact_top(layout: Layout, pair_loss: PairLoss, found: Judged) -> Judged:
    """The pairs with those that may be the hardest judged by the similarities of `reference`."""
    top = found.loss.amax()
    near = found.loss >= top - _reach(layout, found, top)
    # At a flat minimum losses are what they are.
    if int(near.sum()) > 1 and bool((found.slope[near] != 0).any()):
        found, _ = _exactly_at(layout, pair_loss, found, near)
    return found


def _reach(layout: Layout, found: Judged, loss: Tensor) -> Tensor:
    """How far rounding in float64 may have moved a loss near this one, generously."""
    d = layout.rows.vector.shape[1]
    of_similarity = (2 * d + 16) * 2.0**-53 * layout.rows.longest * layout.columns.longest
    return 64 * of_similarity * (1 + found.slope.abs().amax()) + 2.0**-45 * loss.abs()


def _exactly_at(
    layout: Layout, pair_loss: PairLoss, found: Judged, mask: Tensor
) -> tuple[Judged, Judged]:
    """The pairs with some of them judged by the similarities of `reference`; and only those."""
    exact = judge_exactly(layout, pair_loss, found[mask])
    loss, slope = found.loss.clone(), found.slope.clone()
    loss[mask], slope[mask] = exact.loss, exact.slope
    return replace(found, loss=loss, slope=slope), exact


def _first(loss: Tensor, i: Tensor, j: Tensor, count: int) -> Tensor:
    """A mask of the `count` largest losses, of equal ones those with the smallest i, then j."""
    order = by_place(i, j)
    order = order[loss[order].argsort(stable=True, descending=True)]
    mask = torch.zeros_like(loss, dtype=torch.bool)
    mask[order[:count]] = True
    return mask
