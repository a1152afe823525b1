"""Runs the search with a copy of the array in each process, and with Cotensor, and prints the memory of both.

    python measure.py --processes 4 --vectors 200000
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common.fresh import fresh  # noqa: E402
from common.memory import Memory, measure, own_daemon, tree  # noqa: E402
from common.report import arguments, report, run_variants  # noqa: E402

DIMENSIONS = 384
QUERIES = 16
#: The longest time until all processes of a pool have answered, in seconds.
START_SECONDS_MAX = 120.0


def run(
    program: Path, file: str, processes: int, start: str, environment: Dict[str, str]
) -> Tuple[Memory, List[int]]:
    """The memory of a program with a pool whose processes have all run, and the answers. `program` is the folder of search.py."""
    sys.path.insert(0, str(program))
    search = importlib.import_module("search")
    data = search.load(file)
    with tempfile.TemporaryDirectory() as met, search.open_pool(data, processes, start) as pool:
        for _ in pool.map(meet, [met] * processes, [processes] * processes):
            pass
        answers = pool.map(search.nearest, [data[at : at + 4] for at in range(0, QUERIES, 4)])
        found = [int(index) for answer in answers for index in answer]
        return measure(tree(os.getpid()), environment if program == HERE else None), found


def meet(folder: str, count: int) -> None:
    """Waits until `count` processes are here, so that each of them runs this once."""
    Path(folder, str(os.getpid())).touch()
    deadline = time.monotonic() + START_SECONDS_MAX
    while len(os.listdir(folder)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(os.listdir(folder))} of {count} processes of the pool have started")
        time.sleep(0.01)


def main() -> None:
    parser = arguments("Memory of the processes of a pool, with and without Cotensor.")
    parser.add_argument("--vectors", type=int, default=60_000, help=f"vectors of {DIMENSIONS} numbers (default 60000)")
    parser.add_argument("--start", choices=["forkserver", "spawn"], default="forkserver", help="how the pool starts processes")
    options = parser.parse_args()
    import numpy as np

    with tempfile.NamedTemporaryFile(suffix=".npy") as file, own_daemon() as environment:
        np.save(file, np.random.default_rng(0).standard_normal((options.vectors, DIMENSIONS), np.float32))
        file.flush()
        given = (file.name, options.processes, options.start, environment)
        runs = run_variants(options, HERE, lambda program: fresh(environment, run, program, *given))
    what = f"an array of {options.vectors * DIMENSIONS * 4 >> 20} MiB, started by {options.start}"
    report(options, HERE, what, runs)


if __name__ == "__main__":
    main()
