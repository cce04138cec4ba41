"""Losses that are made of the soft maxima of every anchor's similarities: LS and MS."""

from __future__ import annotations

from abc import abstractmethod

from drometric.engine.anchor_loss import AnchorLoss
from drometric.engine.anchors import Anchors, suits
from drometric.engine.dense import Dense
from drometric.engine.dense_anchors import DenseAnchors
from drometric.engine.layout import Layout
from drometric.engine.outcome import Outcome
from drometric.engine.plan import Plan
from drometric.engine.tile_losses import Linear
from drometric.mining.mined import Miner, mines_by_anchor


class SoftMaximaLoss(AnchorLoss):
    """A loss that needs `log Σ e^{l/γ}` of each anchor's positives and negatives, and no more.

    The losses l are linear in the similarities. With a miner it goes by strips, as others do.
    """

    miner: Miner | None
    slack: bool
    """Whether there is one more element of loss 0 in every sum."""

    @property
    def by_anchor(self) -> bool:
        return mines_by_anchor(self.miner)

    @property
    def has_tiles(self) -> bool:
        return self.miner is None

    def at_once(self, dense: Dense) -> Outcome | None:
        pair_loss, gammas = self.pair_loss_and_gammas()
        return self.from_anchors(DenseAnchors(dense, pair_loss, gammas))

    def in_tiles(self, layout: Layout, plan: Plan) -> Outcome | None:
        pair_loss, gammas = self.pair_loss_and_gammas()
        if not suits(layout, pair_loss, gammas, slack=self.slack):
            return None
        return self.from_anchors(Anchors(layout, pair_loss, gammas, plan, slack=self.slack))

    @abstractmethod
    def pair_loss_and_gammas(self) -> tuple[Linear, dict[bool, float]]:
        """The losses l, and γ of each sign."""

    @abstractmethod
    def from_anchors(self, anchors: Anchors | DenseAnchors) -> Outcome:
        """The loss, given the sums of every anchor."""
