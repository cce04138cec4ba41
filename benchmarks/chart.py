"""A picture of what losses.py measured: time and memory against the batch size.

    python benchmarks/chart.py benchmarks/results/cpu-*.json -o docs/losses.svg

Needs matplotlib.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

# Implementation and loss, as in the rows; label, colour and style.
LINES = {
    ("drometric", "TopK"): ("drometric TopK", "#1b62b5", "-"),
    ("drometric", "MultiSimilarity"): ("drometric MS", "#1b62b5", "--"),
    ("plain", "TopK"): ("plain TopK", "#b5541b", "-"),
    ("plain", "MultiSimilarity"): ("plain MS", "#b5541b", "--"),
    ("peer", "MultiSimilarity"): ("pytorch-metric-learning MS", "#7d3fa0", "--"),
    ("X @ X.T", "TopK"): ("one bare X @ X.T", "#6b6b6b", "-"),
}
DATA = "random"
PANELS = {
    "milliseconds": "Milliseconds, forward and backward",
    "peak_mib": "MiB at the peak, beyond the inputs",
}
TEXT, RULES = "#404040", "#dddddd"
GAP = 0.055
"""Between two labels, as a part of the height."""


def draw(result: dict, path: Path) -> None:
    matplotlib.rcParams.update({"font.size": 9, "text.color": TEXT, "svg.hashsalt": "drometric"})
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.4), facecolor="white")
    for panel, (quantity, title) in zip(axes, PANELS.items(), strict=True):
        _draw_panel(panel, result["rows"], quantity)
        panel.set_title(title, loc="left", fontsize=10)
    figure.text(0.01, 0.012, _caption(result), fontsize=7.5, color="#707070")
    figure.tight_layout(rect=(0, 0.04, 1, 1), w_pad=2)
    figure.savefig(path, metadata={"Date": None})


def _draw_panel(axes: Axes, rows: list[dict], quantity: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    batches = sorted({row["batch"] for row in rows})
    labels = []
    for (implementation, loss), (label, colour, style) in LINES.items():
        measured, values = _curve(rows, implementation, loss, quantity)
        if not measured:
            continue
        axes.plot(measured, values, style, color=colour, linewidth=1.6, marker="o", markersize=3)
        # A line that ends early is named where it would have gone.
        height = values[-1] * (batches[-1] / measured[-1]) ** 2
        up_to = "" if measured[-1] == batches[-1] else f", up to {measured[-1]}"
        labels.append((height, label + up_to, colour))
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("B, embeddings in a batch", loc="left", color=TEXT)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.minorticks_off()
    _label(axes, labels)
    axes.grid(axis="y", color=RULES, linewidth=0.6)
    axes.tick_params(length=0, colors=TEXT)
    axes.spines[:].set_visible(False)


def _curve(
    rows: list[dict], implementation: str, loss: str, quantity: str
) -> tuple[list[int], list[float]]:
    """What was measured of one loss, by batch; medians where there are several rows."""
    found = defaultdict(list)
    for row in rows:
        wanted = (row["implementation"], row["loss"], row["data"]) == (implementation, loss, DATA)
        if wanted and row[quantity]:
            found[row["batch"]].append(row[quantity])
    batches = sorted(found)
    return batches, [statistics.median(found[batch]) for batch in batches]


def _label(axes: Axes, labels: list[tuple[float, str, str]]) -> None:
    """To the right of the lines, in their order, as close to their heights as there is room."""
    labels = sorted(labels)
    low, high = (math.log(limit) for limit in axes.get_ylim())
    places = [(math.log(height) - low) / (high - low) for height, _, _ in labels]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + GAP)
    below = 1 + GAP
    for i in reversed(range(len(places))):
        below = places[i] = min(places[i], below - GAP)
    for place, (_, label, colour) in zip(places, labels, strict=True):
        axes.annotate(
            label,
            (1, place),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=colour,
        )


def _caption(result: dict) -> str:
    machine, versions, rows = result["machine"], result["versions"], result["rows"]
    used = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    packages = (name for name in ("torch", "pytorch-metric-learning") if name in versions)
    return "  ·  ".join(
        [
            used,
            f"float32, d = {rows[0]['dim']}, 5 examples a class",
            *(f"{name} {versions[name]}" for name in packages),
            "MS: MultiSimilarity, plain: PyTorch's autograd",
            result["date"],
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("result", type=Path, help="JSON, as losses.py writes it")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/losses.svg"))
    arguments = parser.parse_args()
    try:
        result = json.loads(arguments.result.read_text(encoding="utf-8"))
    except OSError as error:
        parser.error(f"cannot read {arguments.result}: {error.strerror}")
    except ValueError as error:
        parser.error(f"{arguments.result} is no JSON ({error}): give a file that losses.py wrote")
    missing = {"machine", "versions", "rows", "date"} - set(result)
    if missing or not result["rows"]:
        lacks = ", ".join(sorted(missing)) or "any row"
        parser.error(f"{arguments.result} lacks {lacks}: give a file that losses.py wrote")
    draw(result, arguments.out)


if __name__ == "__main__":
    main()
