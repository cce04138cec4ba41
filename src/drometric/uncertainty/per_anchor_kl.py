"""The paper's grouped form: a soft maximum for every anchor and sign (DRO-KL-G)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from drometric.checks import number, one_of, switch
from drometric.uncertainty.pairs import Pairs, WorstCase
from drometric.uncertainty.soft_maximum import soft_maximum


@dataclass(frozen=True, eq=False)
class PerAnchorKL:
    """A soft maximum over each anchor's positives and over its negatives: the paper's DRO-KL-G.

    `(1/B) Σ_i [γ+ log((1/P_i) Σ_{P_i} e^{l/γ+}) + γ- log((1/N_i) Σ_{N_i} e^{l/γ-})]` over all B
    anchors and ordered pairs, eq. (7); an empty group gives 0.

    With the margin loss, and where the hinges of all pairs are active, its gradient is

    - at γ = 1 that of `LiftedStructure`, where the outer hinge of that is active and every
      anchor has both signs;
    - at γ+ = 1/α, γ- = 1/β and with `slack` that of `MultiSimilarity` with the threshold λ + m
      in its positive term and λ - m in its negative one;
    - at γ = 0 that of `Triplet(triplets="hardest")`, under the conditions of the first.

    The weight of an unordered pair is `(p_{i→j} + p_{j→i}) / B`, across two sets `p_{i→j} / B`.
    The weights sum up to 2 where every anchor has both signs, and to less with `slack`.

    Args:
        gamma_positive: γ+, from 0 (the maximum) to ∞ (the mean): a number, or a vector (tensor)
            with one per anchor. It gets no gradient.
        gamma_negative: γ-, the same for negatives.
        slack: one more element of loss 0 in every group (its size is then P_i + 1, N_i + 1).
        reduction: "mean" over anchors, or "sum", eq. (7) as printed.
    """

    gamma_positive: float | Tensor = 0.1
    gamma_negative: float | Tensor = 0.1
    slack: bool = False
    _: KW_ONLY
    reduction: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        _check_gamma("gamma_positive", self.gamma_positive)
        _check_gamma("gamma_negative", self.gamma_negative)
        switch("slack", self.slack)
        one_of("reduction", self.reduction, ("mean", "sum"))

    def worst_case(self, pairs: Pairs) -> WorstCase:
        value, weight = pairs.loss.new_zeros(()), torch.zeros_like(pairs.loss)
        for name, mask in (("gamma_positive", pairs.positive), ("gamma_negative", ~pairs.positive)):
            group = pairs.keep(mask)
            gamma = of_anchors(name, getattr(self, name), pairs.row_count, pairs.loss)
            loss, counted = _by_anchor(group)
            values, p = soft_maximum(loss, gamma, counted, slack=self.slack)
            value = value + values.sum()
            weight[mask] = p[group.row, group.column]
            if pairs.within:
                weight[mask] += p[group.column, group.row]
        scale = 1 / pairs.row_count if self.reduction == "mean" else 1.0
        return WorstCase(value * scale, weight * scale)


def _by_anchor(group: Pairs) -> tuple[Tensor, Tensor]:
    """The group's losses as one row an anchor, and which entries of those rows count."""
    loss = group.loss.new_zeros(group.row_count, group.column_count)
    counted = torch.zeros_like(loss, dtype=torch.bool)
    loss[group.row, group.column] = group.loss
    counted[group.row, group.column] = True
    if group.within:
        loss, counted = loss + loss.T, counted | counted.T
    return loss, counted


def _check_gamma(name: str, gamma: float | Tensor) -> None:
    if not hasattr(gamma, "__len__") or isinstance(gamma, str):
        number(name, gamma, at_least=0.0, infinite=True)
    elif (
        not isinstance(gamma, Tensor)
        or gamma.dim() > 1
        or not gamma.is_floating_point()
        or gamma.requires_grad
        or not bool((gamma >= 0).all())
    ):
        raise ValueError(
            f"{name} must be a number or a floating-point vector (a tensor) with one entry per "
            f"anchor, none below 0, that wants no gradient; got {gamma!r}"
        )


def of_anchors(name: str, gamma: float | Tensor, anchors: int, like: Tensor) -> Tensor:
    """A γ as a vector of one entry, or of one per anchor, of the kind of `like`."""
    vector = torch.as_tensor(gamma, dtype=like.dtype, device=like.device).reshape(-1)
    if len(vector) not in (1, anchors):
        raise ValueError(
            f"{name} must be a number or have one entry per anchor ({anchors}); "
            f"got {len(vector)} entries"
        )
    return vector
