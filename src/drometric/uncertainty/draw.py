"""Draws with replacement that depend on the generator's state and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(weight: Tensor, count: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """For each row of `weight` (rows, n), `count[row]` columns drawn in proportion to the row.

    By inverting the cumulative weights, so that n has no limit (torch.multinomial stops at 2^24).
    The random numbers come from the generator's own device, by default the CPU, so that a seed
    gives the same draws on every device. Each draw takes one number, row by row: on the CPU, to
    draw for some rows after others is the same as to draw for all at once.

    Returns:
        Rows and columns of the draws, row by row.
    """
    total = int(count.sum())
    if total == 0:
        return count.new_empty(0), count.new_empty(0)
    numbers = random_numbers(total, generator, weight.device)
    wanted = torch.arange(int(count.max()), device=weight.device) < count[:, None]
    uniform = torch.zeros(wanted.shape, dtype=torch.float64, device=weight.device)
    uniform.masked_scatter_(wanted, numbers)
    cumulative = weight.to(torch.float64).cumsum(1)
    column = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    # Rounding may carry a draw past the end: then it is the last entry that can be drawn.
    place = torch.arange(weight.shape[1], device=weight.device)
    last = torch.where(weight > 0, place, 0).amax(1, keepdim=True)
    row = torch.arange(len(weight), device=weight.device)[:, None].expand_as(column)
    return row[wanted], column.minimum(last)[wanted]


def random_numbers(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Float64 numbers from 0 to 1, drawn where the generator lives (by default on the CPU)."""
    source = generator.device if generator is not None else torch.device("cpu")
    numbers = torch.rand(count, dtype=torch.float64, device=source, generator=generator)
    return numbers.to(device)


def check_generator(generator: object) -> None:
    """A generator or None, or a `ValueError`."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(
            "generator must be a torch.Generator, such as torch.Generator().manual_seed(0), or "
            f"None; got {generator!r}"
        )
