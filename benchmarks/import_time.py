"""How long `import drometric` takes beyond `import torch`: the best of several fresh processes.

python benchmarks/import_time.py [--json FILE]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

PROCESSES = 7
SCRIPT = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import drometric
print(middle - start, time.perf_counter() - middle)
"""


def measure() -> dict[str, float]:
    """Seconds by package."""
    runs = []
    for _ in range(PROCESSES):
        shown = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
        runs.append([float(seconds) for seconds in shown.stdout.split()])
    torch, drometric = (min(times) for times in zip(*runs, strict=True))
    return {"torch": torch, "drometric": drometric}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the seconds to this file, too")
    arguments = parser.parse_args()
    seconds = measure()
    for package, taken in seconds.items():
        print(f"import {package:<10}{taken:8.3f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(seconds) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
