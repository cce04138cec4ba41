"""The χ² ball from tiles: mean and spread first, then weights that are linear in the losses.

Where weights would fall below 0 their pairs drop out and mean and spread are those of the rest.
Each such step finds an η, below which losses have no weight, that is nearer to the true one from
below; once few pairs are left they are a list, and solved for exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drometric.engine.active import FEW, active_pairs
from drometric.engine.contribution import Contribution
from drometric.engine.gradient import Gradient
from drometric.engine.hard import TooManyTiesError, select, with_exact_top
from drometric.engine.judged import Judged, joined, judge
from drometric.engine.kink import kept_pairs, near_kink
from drometric.engine.layout import FINER, Layout, Tile
from drometric.engine.plan import Plan
from drometric.engine.problem import BOTH
from drometric.engine.screening import products, tile_buffer
from drometric.engine.tile_losses import tile_losses
from drometric.pair_losses import PairLoss
from drometric.uncertainty.chi_square import chi_square_worst_case

FAR = 4.0
"""How many variances the squared distance of the pivot from the mean may be."""


ALIKE = 2e5
"""Losses that differ by less than so many units of their similarities have no direction left."""


@dataclass(frozen=True)
class Moments:
    """Of the pairs whose loss is above η: how many, `Σ d` and `Σ d²` with `d = l - pivot`."""

    count: int
    total: float
    squares: float
    smallest: float
    """The smallest of their losses."""

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            min(self.smallest, other.smallest),
        )


NONE = Moments(0, 0.0, 0.0, math.inf)


@dataclass(frozen=True)
class Line:
    """Weights `[at_pivot + step (l - pivot)]+`, and the value of the loss."""

    value: float
    at_pivot: float
    step: float
    pivot: float

    @property
    def root(self) -> float:
        """η, the loss whose weight is 0."""
        return self.pivot - self.at_pivot / self.step if self.step else -math.inf

    def weight(self, loss: Tensor) -> Tensor:
        return ((loss - self.pivot) * self.step + self.at_pivot).clamp(min=0)


def line_through(moments: Moments, rho: float, n: int, pivot: float) -> Line:
    """The weights of the pairs that the moments are of, were none of them to fall below 0."""
    m = moments.count
    mean = moments.total / m
    spread = max(moments.squares - moments.total * mean, 0.0)
    # Σp² - 1/m, what the ball leaves for uneven weights, without cancellation at m = n.
    room = max((m - n) / (n * m) + 2 * rho / n**2, 0.0)
    step = math.sqrt(room / spread) if spread > 0 else 0.0
    return Line(pivot + mean + step * spread, 1 / m - step * mean, step, pivot)


class Spread:
    """The pairs of a layout, as they are visited for a χ² ball."""

    def __init__(
        self, layout: Layout, pair_loss: PairLoss, rho: float, plan: Plan, *, drop: bool
    ) -> None:
        self.layout, self.pair_loss, self.plan, self.drop = layout, pair_loss, plan, drop
        self.rho = rho
        self.few = FEW * (len(layout.rows) + len(layout.columns))
        self.listed: Judged | None = None
        if layout.positives is not None and len(layout.positives):
            self.listed = judge(layout, pair_loss, layout.positives, True)
            if drop:
                self.listed = kept_pairs(layout, pair_loss, self.listed)
        self.near = near_kink(layout, pair_loss, drop=drop)
        self.in_tiles = BOTH if layout.positives is None else (False,)
        self.pivot: float | None = None

    def contribution(self) -> Contribution | None:
        """The value and the slopes; None where no pair is left."""
        active = active_pairs(self.layout, self.pair_loss, self.in_tiles, self.plan)
        if active is not None:
            found = active.judged + ([] if self.listed is None else [self.listed])
            return self._of_few(joined(found) if found else None, active.others)
        moments = self._moments(-math.inf, first=True)
        n = moments.count
        if not n:
            return None
        assert self.pivot is not None
        mean = moments.total / n
        if moments.squares < (1 + 1 / FAR) * n * mean**2:
            # Around a pivot so far from the mean the spread is lost in rounding.
            self.pivot += mean
            moments = self._moments(-math.inf)
        deviation = math.sqrt(max(moments.squares - moments.total**2 / n, 0.0) / n)
        if deviation <= ALIKE * unit_of(self.layout):
            return self._in_double()
        while True:
            line = line_through(moments, self.rho, n, self.pivot)
            if line.root <= moments.smallest:
                return self._along(line)
            rest = self._moments(line.root)
            if rest.count <= self.few:
                return self._exactly(self._hardest(), n)
            if rest.count == moments.count:
                return self._along(line)
            moments = rest

    def _in_double(self) -> Contribution | None:
        """The same from products in float64; there losses that are alike still, tie."""
        layout = self.layout
        if layout.rows.vector.dtype == torch.float64:
            raise TooManyTiesError
        rows = layout.rows.in_double()
        columns = rows if layout.within else layout.columns.in_double()
        finer = replace(layout, rows=rows, columns=columns)
        spread = Spread(finer, self.pair_loss, self.rho, self.plan, drop=self.drop)
        return spread.contribution()

    def _of_few(self, found: Judged | None, zeros: int) -> Contribution | None:
        """All pairs with a loss, and how many there are without."""
        if self.drop:
            zeros = 0
            found = None if found is None else kept_pairs(self.layout, self.pair_loss, found)
        found = found if found is not None and len(found) else None
        n = zeros + (0 if found is None else len(found))
        if not n:
            return None
        if found is None:
            return Contribution(0.0, None, None)
        self.pivot = 0.0
        moments = self._of_list(found, -math.inf)
        if zeros:
            line = line_through(moments + Moments(zeros, 0.0, 0.0, 0.0), self.rho, n, 0.0)
            if line.root <= 0:
                return Contribution(line.value, found, line.weight(found.loss) * found.slope)
        return self._exactly(found, n)

    def _hardest(self) -> Judged:
        found = select(self.layout, self.pair_loss, dict.fromkeys(BOTH, self.few), self.plan)
        return joined(list(found.values()))

    def _exactly(self, found: Judged, n: int) -> Contribution:
        """The worst case, of which all pairs with a weight were found."""
        found = with_exact_top(self.layout, self.pair_loss, found)
        worst = chi_square_worst_case(found.loss, self.rho, n)
        return Contribution(float(worst.value), found, worst.weight * found.slope)

    def _along(self, line: Line) -> Contribution:
        """The value and the slopes of weights that are known."""
        gradient = Gradient(self.layout)
        for tile, loss, slope, hinge in self._tiles():
            kept = loss.sign() if hinge else None
            if self.drop and kept is None:
                kept = (loss > 0).to(loss.dtype)
            weight = loss.sub_(line.pivot).mul_(line.step).add_(line.at_pivot).clamp_(min=0)
            tile.hide(weight, 0.0)
            for factor in (kept, slope):
                if factor is not None:
                    weight.mul_(factor)
            gradient.add_tile(tile, weight, negated=hinge and tile.positive)
        listed = self.listed
        slopes = None if listed is None else line.weight(listed.loss) * listed.slope
        return Contribution(line.value, listed, slopes, gradient)

    def _moments(self, eta: float, *, first: bool = False) -> Moments:
        """Those of the pairs with a loss above η."""
        device = self.layout.rows.vector.device
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        smallest = torch.full((), math.inf, dtype=torch.float64, device=device)
        for tile, loss, _, _ in self._tiles(remember=first):
            if self.pivot is None:
                self.pivot = _mean(tile, loss)
            cut = max(eta, 0.0) if self.drop else eta
            if cut == -math.inf:
                tile.hide(loss, math.inf)
                smallest = torch.minimum(smallest, loss.amin())
                deviation = tile.hide(loss.sub_(self.pivot), 0.0)
                sums[0] += tile.pairs()
            else:
                above = tile.hide(loss > cut, False)
                smallest = torch.minimum(smallest, loss.masked_fill(~above, math.inf).amin())
                deviation = loss.sub_(self.pivot).mul_(above)
                sums[0] += above.sum()
            sums[1] += deviation.sum()
            # Row by row: one sum over the whole tile would lose digits.
            sums[2] += torch.linalg.vector_norm(deviation, dim=1).double().square().sum()
        if first and self.near is not None:
            found = self.near.judged() + ([] if self.listed is None else [self.listed])
            self.listed = joined(found) if found else None
        count, total, squares = sums.tolist()
        moments = Moments(int(count), total, squares, float(smallest))
        if self.pivot is None:
            self.pivot = 0.0 if self.listed is None else float(self.listed.loss.mean())
        return moments if self.listed is None else moments + self._of_list(self.listed, eta)

    def _of_list(self, listed: Judged, eta: float) -> Moments:
        loss = listed.loss[listed.loss > (max(eta, 0.0) if self.drop else eta)]
        if not len(loss):
            return NONE
        assert self.pivot is not None
        deviation = loss - self.pivot
        sums = torch.stack((deviation.sum(), deviation.square().sum(), loss.amin())).tolist()
        return Moments(len(loss), *sums)

    def _tiles(
        self, *, remember: bool = False
    ) -> Iterator[tuple[Tile, Tensor, Tensor | None, bool]]:
        """Every tile with the losses of its pairs."""
        rows, columns = self.layout.rows.vector, self.layout.columns.vector
        buffer = tile_buffer(self.plan.tile, rows, columns)
        for tile in self.layout.tiles(*self.plan.tile, finer=FINER):
            similarity = products(rows[tile.rows], columns[tile.columns], buffer)
            if self.near is not None:
                self.near.put_aside(tile, similarity, remember=remember)
            yield tile, *tile_losses(self.pair_loss, tile, similarity)


def unit_of(layout: Layout) -> float:
    """What rounding moves a similarity by, about."""
    unit = torch.finfo(layout.rows.vector.dtype).eps / 2
    return unit * layout.rows.longest * layout.columns.longest


def _mean(tile: Tile, loss: Tensor) -> float:
    """The mean loss of a tile's pairs."""
    return float(tile.hide(loss.clone(), 0.0).sum()) / max(int(tile.pairs()), 1)
