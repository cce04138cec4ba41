"""The time of one forward and backward pass."""

import gc
import statistics
import time
from dataclasses import dataclass, field

import torch
from cases import MATMUL, Case, Step
from inputs import Setting

TRIAL = 1280
"""Rows of the run that foretells the time of larger ones."""
SHORTEST = 0.2
"""Seconds for every implementation, whatever the budget: many runs of what is quick."""


@dataclass(frozen=True)
class Times:
    """What every run took."""

    seconds: list[float] = field(default_factory=list)
    in_m: list[float] = field(default_factory=list)
    """The same as a multiple of what `X @ X.T` took in that round."""

    def __bool__(self) -> bool:
        return bool(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def median_in_m(self) -> float:
        return statistics.median(self.in_m)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Of the seconds."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def foretell(case: Case, implementation: str, batch: int, setting: Setting) -> float:
    """Seconds of a run, from the second one of `TRIAL` rows at most, which also warms up."""
    rows = min(batch, TRIAL)
    step = case.step(implementation, *setting.inputs(case.data, rows))
    step.run()
    return _seconds(step, setting.device) * (batch / rows) ** 2


def interleave(
    case: Case, implementations: list[str], batch: int, setting: Setting, budget: float
) -> dict[str, Times]:
    """All in turn, `X @ X.T` before them, each until its share of the seconds is spent."""
    x, labels = setting.inputs(case.data, batch)
    unit = case.step(MATMUL, x, labels)
    steps = {name: case.step(name, x, labels) for name in implementations}
    times = {name: Times() for name in (MATMUL, *steps)}
    share = max(budget / max(len(steps), 1), SHORTEST)
    gc.collect()
    gc.disable()
    try:
        while due := [name for name in steps if _is_due(times[name].seconds, share)]:
            one = _seconds(unit, setting.device)
            _append(times[MATMUL], one, one)
            for name in due:
                _append(times[name], _seconds(steps[name], setting.device), one)
    finally:
        gc.enable()
    return times


def _is_due(seconds: list[float], share: float) -> bool:
    """Until another run would end further from the share than the last one did."""
    return not seconds or sum(seconds) + seconds[-1] / 2 < share


def _append(times: Times, seconds: float, unit: float) -> None:
    times.seconds.append(seconds)
    times.in_m.append(seconds / unit)


def _seconds(step: Step, device: str) -> float:
    step.x.grad = None
    _synchronize(device)
    start = time.perf_counter()
    step.run()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
