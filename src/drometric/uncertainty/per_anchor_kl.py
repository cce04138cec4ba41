"""The paper's grouped form: a soft maximum for every anchor and sign (DRO-KL-G)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real

import torch
from torch import Tensor

from drometric.checks import number, one_of, switch
from drometric.uncertainty.pairs import Pairs, WorstCase
from drometric.uncertainty.soft_maximum import soft_maximum


@dataclass(frozen=True, eq=False)
class PerAnchorKL:
    """A soft maximum over each anchor's positives and over its negatives: the paper's DRO-KL-G.

    `(1/B) Σ_i [γ+ log((1/P_i) Σ_{P_i} e^{l/γ+}) + γ- log((1/N_i) Σ_{N_i} e^{l/γ-})]` over all B
    anchors and ordered pairs (section 3.3); an empty group gives 0. At γ = 1 its gradient is
    that of the lifted-structure loss where all hinges are active; with `slack` that of the
    multi-similarity loss; at γ = 0 that of batch-hard triplets.

    The weight of an unordered pair is `(p_{i→j} + p_{j→i}) / B`: the weights sum up to 2.

    Args:
        gamma_positive: γ+, from 0 (the maximum) to ∞ (the mean): a number, or one per anchor.
        gamma_negative: γ-, the same for negatives.
        slack: one more element of loss 0 in every group (its size is then P_i + 1, N_i + 1).
        reduction: "mean" over anchors, or "sum", the paper's eq. (7) as printed.
    """

    gamma_positive: float | Tensor = 0.1
    gamma_negative: float | Tensor = 0.1
    slack: bool = False
    _: KW_ONLY
    reduction: str = "mean"

    def __post_init__(self) -> None:
        _check_gamma("gamma_positive", self.gamma_positive)
        _check_gamma("gamma_negative", self.gamma_negative)
        switch("slack", self.slack)
        one_of("reduction", self.reduction, ("mean", "sum"))

    def worst_case(self, pairs: Pairs) -> WorstCase:
        value, weight = pairs.loss.new_zeros(()), torch.zeros_like(pairs.loss)
        for name, mask in (("gamma_positive", pairs.positive), ("gamma_negative", ~pairs.positive)):
            group = pairs.keep(mask)
            gamma = _per_anchor(name, getattr(self, name), pairs)
            values, p = soft_maximum(*_by_anchor(group, gamma), slack=self.slack)
            value = value + values.sum()
            weight[mask] = p[group.row, group.column]
            if pairs.within:
                weight[mask] += p[group.column, group.row]
        scale = 1 / pairs.rows if self.reduction == "mean" else 1.0
        return WorstCase(value * scale, weight * scale)


def _by_anchor(group: Pairs, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The group's losses as one row an anchor, γ, and which entries of those rows count."""
    loss = group.loss.new_zeros(group.rows, group.columns)
    counted = torch.zeros_like(loss, dtype=torch.bool)
    loss[group.row, group.column] = group.loss
    counted[group.row, group.column] = True
    if group.within:
        loss, counted = loss + loss.T, counted | counted.T
    return loss, gamma, counted


def _check_gamma(name: str, gamma: float | Tensor) -> None:
    if isinstance(gamma, Real):
        number(name, gamma, at_least=0.0, infinite=True)
        return
    if (
        not isinstance(gamma, Tensor)
        or gamma.dim() > 1
        or not gamma.is_floating_point()
        or not bool((gamma >= 0).all())
    ):
        raise ValueError(
            f"{name} must be a number or a floating-point vector (a tensor with one entry per "
            f"anchor), none below 0; got {gamma!r}"
        )


def _per_anchor(name: str, gamma: float | Tensor, pairs: Pairs) -> Tensor:
    loss = pairs.loss
    vector = torch.as_tensor(gamma, dtype=loss.dtype, device=loss.device).reshape(-1)
    if len(vector) not in (1, pairs.rows):
        raise ValueError(
            f"{name} must be a number or have one entry per anchor ({pairs.rows}); "
            f"got {len(vector)} entries"
        )
    return vector
