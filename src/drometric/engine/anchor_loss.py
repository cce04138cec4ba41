"""Losses that are a sum over anchors, so that some anchors can be looked at without the others."""

from __future__ import annotations

from abc import abstractmethod

from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch
from drometric.engine.layout import Layout, read_layout
from drometric.engine.outcome import Outcome
from drometric.engine.pairwise_loss import PairwiseLoss
from drometric.engine.plan import Plan, choose
from drometric.engine.share import Share, denominator
from drometric.engine.solution import Solution, from_slope
from drometric.engine.strips import solve_by_strips


class AnchorLoss(PairwiseLoss):
    """A loss to which every anchor adds its share, whatever the other anchors are."""

    @property
    def by_anchor(self) -> bool:
        """False if the shares can be told from the whole batch only."""
        return True

    @abstractmethod
    def share(self, strip: Batch) -> Share:
        """The share of the strip's anchors."""

    def solve(self, batch: Batch) -> Solution:
        """The share of all anchors, in one strip."""
        total, terms, slope = self.share(batch)
        size = denominator(terms, total)
        return from_slope(batch, total / size, slope / size)

    def in_tiles(self, layout: Layout, plan: Plan) -> Outcome | None:
        """The loss from tiles of pairs, for one that has an algorithm for them."""
        return None

    def evaluate(self, arguments: Arguments, wanted: tuple[bool, bool]) -> Outcome:
        """The loss from tiles if it can, else from strips of anchors."""
        size = len(arguments.embeddings), len(arguments.columns)
        plan = choose(*size, arguments.embeddings.device)
        if plan.path == "plain":
            return super().evaluate(arguments, wanted)
        outcome = None
        if plan.path == "tiles" and type(self).in_tiles is not AnchorLoss.in_tiles:
            layout = read_layout(arguments, normalize=self.normalize)
            outcome = None if layout is None else self.in_tiles(layout, plan)
        if outcome is None:
            outcome = solve_by_strips(self, arguments, wanted=wanted)
        return outcome
