"""What was measured, as rows to keep and as lines to read."""

from dataclasses import dataclass

from cases import MATMUL, Case
from timing import Times

NAME, CELL = 32, 38


@dataclass(frozen=True)
class Row:
    """One implementation of one loss at one batch size."""

    case: Case
    implementation: str
    batch: int
    dim: int
    times: Times
    """Empty where no time was measured."""
    peak_mib: float | None
    skipped: str | None
    """Why nothing was measured."""

    def to_json(self) -> dict[str, object]:
        """Medians, and as `spread` the quartiles of the milliseconds; None if not measured."""
        timed = bool(self.times)
        return {
            "implementation": self.implementation,
            "loss": self.case.loss,
            "data": self.case.data,
            "batch": self.batch,
            "dim": self.dim,
            "milliseconds": _short(1e3 * self.times.median) if timed else None,
            "in_M": _short(self.times.median_in_m) if timed else None,
            "spread": [_short(1e3 * s) for s in self.times.quartiles] if timed else None,
            "runs": len(self.times.seconds),
            "peak_mib": None if self.peak_mib is None else round(self.peak_mib, 1),
            "skipped": self.skipped,
        }

    def cell(self) -> str:
        """Milliseconds, spread, runs, in M, MiB."""
        if self.skipped:
            return f"{self.skipped:>{CELL}}"
        shown = " " * 28
        if self.times:
            low, high = self.times.quartiles
            percent = 50 * (high - low) / self.times.median
            milliseconds = f"{_short(1e3 * self.times.median):>9g}"
            runs = f"x{len(self.times.seconds)}"
            shown = f"{milliseconds} ±{percent:>2.0f}% {runs:>5} {self.times.median_in_m:>7.1f}"
        mib = "" if self.peak_mib is None else f"{self.peak_mib:.1f}"
        return f"{shown} {mib:>8}".rjust(CELL)


def header(implementations: list[str]) -> str:
    """Two lines above those of `line`."""
    units = f"{'ms':>9} {'±':>3}  {'runs':>5} {'in M':>7} {'MiB':>8}".rjust(CELL)
    above = "".join(f"  {name:>{CELL}}" for name in implementations)
    below = "".join(f"  {units}" for _ in implementations)
    return (
        f"{'':<{NAME}}{'':>10}{above}\n"
        f"{'loss, data, batch':<{NAME}}{'M in ms':>10}{below}  drometric/plain"
    )


def line(rows: list[Row], implementations: list[str]) -> str:
    """One loss at one batch size."""
    of = {row.implementation: row for row in rows}
    unit = of[MATMUL]
    name = f"{unit.case.name:<24} {unit.batch:>6}"
    shown = f"{_short(1e3 * unit.times.median):>10g}" if unit.times else " " * 10
    cells = "".join(
        "  " + (of[name].cell() if name in of else f"{'-':>{CELL}}") for name in implementations
    )
    return f"{name:<{NAME}}{shown}{cells}  {_ratio(of):>7}".rstrip()


def _ratio(of: dict[str, Row]) -> str:
    both = [of[name].times for name in ("drometric", "plain") if name in of]
    if len(both) < 2 or not all(both):
        return ""
    ours, plain = both
    return f"{ours.median / plain.median:.2f}"


def _short(number: float) -> float:
    """Four significant digits."""
    return float(f"{number:.4g}")
