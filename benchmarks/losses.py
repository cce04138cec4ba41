"""Forward and backward of drometric's losses beside the same losses in plain autograd and, where
it has them, in pytorch-metric-learning (`peer`).

    python benchmarks/losses.py                                  everything: some 15 minutes
    python benchmarks/losses.py --losses TopK "KL wide" --batches 80 640 --budget 20
    python benchmarks/losses.py --check --batches 80 640         do they compute the same?
    python benchmarks/chart.py benchmarks/results/cpu-*.json -o docs/losses.svg

The unit M is the time of one bare `X @ X.T` of the same embeddings in the same process. The
implementations take turns, and every round begins with M. Shown are the median, half the distance
between the quartiles in percent of it, and how many runs there were; then the median in M, and
the MiB that one run in a fresh process needs at its peak beyond the inputs and their gradient.

`wide` is `Margin(margin=2.0)`, with which every pair is active; other pair losses are `Margin()`.
A batch has 5 examples of each class. Embeddings are `random`, all much `alike`, or `trained`:
near their own class, far from nearly all others. Implementations that disagree are not timed.
"""

import argparse
import json
import os
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import agreement
import machine
import memory
import torch
from cases import CASES, IMPLEMENTATIONS, MATMUL, Case, peer_is_installed
from inputs import PER_CLASS, Setting
from table import Row, header, line
from timing import Times, foretell, interleave

RESULTS = Path(__file__).parent / "results"
BATCHES = [80, 640, 2560, 10240]
LONGEST = 20.0
"""Seconds that one run may take."""
LARGEST = 6.5
"""GiB that one run may need."""
MEMORY_TRIAL = 2560
"""Rows that foretell the memory of more; fewer need too little to matter."""


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    changed = {name for name, value in vars(options).items() if value != parser.get_default(name)}
    if options.threads:
        torch.set_num_threads(options.threads)
    setting = Setting(
        options.dim, options.order == "shuffled", options.device, torch.get_num_threads()
    )
    described = machine.describe(options.device)
    print(", ".join(f"{key} {value}" for key, value in described.items()))
    cases = [case for case in CASES if case.name.startswith(tuple(options.losses))]
    if not cases:
        parser.error(f"no loss begins with {' or '.join(options.losses)}")
    if "peer" in options.implementations and not peer_is_installed():
        print("pytorch-metric-learning is not installed: no peer")
    checked = options.batches if options.check else [80]
    if not _agree(cases, options.implementations, checked, setting):
        return 1
    if options.check:
        return 0
    rows = _measure(cases, options, setting)
    if options.out is not None:
        _write(options.out, described, rows)
    elif changed <= {"budget", "device"}:
        _write(RESULTS / f"{machine.slug(described)}.json", described, rows)
    return 0


def _agree(
    cases: list[Case], implementations: list[str], batches: list[int], setting: Setting
) -> bool:
    print("relative differences to drometric, of value and gradient")
    agreed = True
    for batch in batches:
        for case in cases:
            shown, wrong = agreement.disagreements(case, implementations, batch, setting)
            print(f"  {shown}" + "".join(f"   {name} DISAGREES" for name in wrong), flush=True)
            agreed = agreed and not wrong
    return agreed


def _measure(cases: list[Case], options: argparse.Namespace, setting: Setting) -> list[Row]:
    """Loss by loss; the seconds that are left are shared out in proportion to the batch."""
    print(f"\n{header(options.implementations)}")
    deadline = time.monotonic() + options.budget
    weight_left = len(cases) * sum(options.batches)
    rows = []
    for case in cases:
        for batch in options.batches:
            now = time.monotonic()
            until = now + max(deadline - now, 0.0) * batch / weight_left
            weight_left -= batch
            found = _measure_one(case, batch, options, setting, until)
            print(line(found, options.implementations), flush=True)
            rows += found
    return rows


def _measure_one(
    case: Case, batch: int, options: argparse.Namespace, setting: Setting, until: float
) -> list[Row]:
    names = [name for name in options.implementations if case.has(name)]
    skipped = {name: _too_much(case, name, batch, setting) for name in names}
    peaks: dict[str, float | None] = {}
    times: dict[str, Times] = {}
    if not options.no_memory and memory.is_measurable(setting.device):
        for name in (MATMUL, *(name for name in names if skipped[name] is None)):
            peaks[name] = memory.peak_mib(case, name, batch, setting)
            if peaks[name] is None:
                skipped[name] = "failed"
    if not options.memory_only:
        runnable = [name for name in names if skipped[name] is None]
        times = interleave(case, runnable, batch, setting, until - time.monotonic())
    return [
        Row(
            case=case,
            implementation=name,
            batch=batch,
            dim=setting.dim,
            times=times.get(name, Times()),
            peak_mib=peaks.get(name),
            skipped=skipped.get(name),
        )
        for name in (MATMUL, *names)
    ]


def _too_much(case: Case, implementation: str, batch: int, setting: Setting) -> str | None:
    """Why this is not run, foretold from smaller batches: time and memory grow by the square."""
    if batch > MEMORY_TRIAL and memory.is_measurable(setting.device):
        trial = memory.peak_mib(case, implementation, MEMORY_TRIAL, setting)
        if trial is None:
            return f"failed at {MEMORY_TRIAL} rows"
        gib = trial / 1024 * (batch / MEMORY_TRIAL) ** 2
        if gib > LARGEST:
            return f"would need {gib:.0f} GiB"
    seconds = foretell(case, implementation, batch, setting)
    return f"would take {seconds:.0f} s" if seconds > LONGEST else None


def _write(path: Path, described: dict[str, object], rows: list[Row]) -> None:
    result = {
        "machine": described,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": machine.versions(),
        "command": shlex.join(["python", "benchmarks/losses.py", *sys.argv[1:]]),
        "rows": [row.to_json() for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)
    print(f"\nwritten to {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--losses",
        nargs="+",
        metavar="NAME",
        default=[""],
        help="only rows that begin so: " + "; ".join(case.name for case in CASES),
    )
    add("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS))
    add("--batches", nargs="+", type=_batch, metavar="B", default=BATCHES, help=f"{BATCHES}")
    add("--dim", type=int, default=512, help="columns of the embeddings (512)")
    add("--order", choices=("sorted", "shuffled"), default="sorted", help="of rows, by class")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--threads", type=int, help="of the CPU; as many as torch takes by itself")
    add(
        "--budget",
        type=float,
        default=800.0,
        metavar="SECONDS",
        help="for everything (800); what is slow is run once even if that is too long",
    )
    add(
        "--out",
        type=Path,
        metavar="JSON",
        help="benchmarks/results/MACHINE.json for everything; a part is kept only where told",
    )
    add("--check", action="store_true", help="compare at all --batches, and measure nothing")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--no-memory", action="store_true", help="measure only time")
    what.add_argument("--memory-only", action="store_true", help="measure only memory")
    return parser


def _batch(text: str) -> int:
    if not text.isdecimal() or int(text) < 2 * PER_CLASS or int(text) % PER_CLASS:
        raise argparse.ArgumentTypeError(f"must be a multiple of {PER_CLASS} from 10 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
