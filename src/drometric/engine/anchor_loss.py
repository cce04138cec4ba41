"""Losses that are a sum over anchors, so that some anchors can be looked at without the others."""

from __future__ import annotations

from abc import abstractmethod

from drometric.engine.arguments import Arguments
from drometric.engine.batch import Batch
from drometric.engine.dense import Dense, read_dense
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

    @property
    def has_tiles(self) -> bool:
        """Whether there are algorithms for all pairs at once and for tiles of pairs, too."""
        return False

    def at_once(self, dense: Dense) -> Outcome | None:
        """The loss of a small batch; None where that doesn't do."""
        return None

    def in_tiles(self, layout: Layout, plan: Plan) -> Outcome | None:
        """The loss from tiles of pairs; None where that doesn't do."""
        return None

    def evaluate(self, arguments: Arguments, wanted: tuple[bool, bool]) -> Outcome:
        """The loss by the path that suits the size of the call, else from strips of anchors."""
        size = len(arguments.embeddings), len(arguments.columns)
        plan = choose(*size, arguments.embeddings.device)
        if plan.path == "plain":
            return super().evaluate(arguments, wanted)
        outcome = None
        if self.has_tiles and plan.path == "dense":
            dense = read_dense(arguments, normalize=self.normalize)
            outcome = None if dense is None else self.at_once(dense)
        elif self.has_tiles:
            layout = read_layout(arguments, normalize=self.normalize)
            outcome = None if layout is None else self.in_tiles(layout, plan)
        return outcome or solve_by_strips(self, arguments, wanted=wanted)
