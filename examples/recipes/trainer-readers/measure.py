"""Runs a trainer and readers that exchange files, and with Cotensor, and prints the largest memory of both.

    python measure.py --processes 4 --model base
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from common.memory import Memory, measure, own_daemon  # noqa: E402
from common.models import TORCH_MODELS, encoder, size_of  # noqa: E402
from common.report import arguments, report, run_variants  # noqa: E402

#: The memory is measured until each reader has read so many versions, or until `--seconds` have passed.
VERSIONS = 5
LINE = re.compile(r"(?:step|version) (\d+): loss (\S+)")


class Program:
    """A program that prints lines as `version 3: loss 10.5`, until it is ended."""

    def __init__(self, folder: Path, name: str, *arguments: str, **options: Any) -> None:
        command = [sys.executable, str(folder / name), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
        #: The losses by version.
        self.losses: Dict[int, float] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            found = LINE.match(line)
            if found:
                self.losses[int(found[1])] = float(found[2])

    def wait(self, seconds: float) -> None:
        """Waits so long, or until the end of the program."""
        self._thread.join(seconds)

    def check(self) -> None:
        if self.process.poll() is not None:
            raise SystemExit("a program ended; its message is above")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._thread.join()


def run(
    folder: Path, environment: Dict[str, str], model: Path, processes: int, seconds: float
) -> Tuple[Memory, List[Dict[int, float]]]:
    """The largest memory while the readers read, and the losses of each reader by version. Ends `seconds` after all have read."""
    # One thread each: the programs together have the cores.
    environment = {**environment, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as files:
        programs: List[Program] = []
        try:
            for name in ["trainer.py"] + ["reader.py"] * processes:
                programs.append(Program(folder, name, str(model), cwd=files, env=environment))
            largest = Memory(0)
            readers = programs[1:]
            end = math.inf
            while (any(len(reader.losses) < VERSIONS for reader in readers) and time.monotonic() < end) or not largest.total:
                for program in programs:
                    program.check()
                programs[0].wait(0.1)
                if all(reader.losses for reader in readers):
                    end = min(end, time.monotonic() + seconds)
                    pids = [program.process.pid for program in programs]
                    found = measure(pids, environment if folder == HERE else None)
                    largest = max(largest, found, key=lambda memory: memory.total)
        finally:
            for program in programs:
                program.end()
        return largest, [reader.losses for reader in readers]


def main() -> None:
    parser = arguments("Memory of a trainer and its readers, with and without Cotensor.", f"medium, {TORCH_MODELS}")
    parser.add_argument("--seconds", type=float, default=10.0, help="longest measurement after all have read (default 10)")
    # Two minutes at most on two cores: each process imports torch and transformers.
    parser.set_defaults(processes=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, own_daemon() as environment:
        model = encoder(options.model, Path(made))
        runs = run_variants(options, HERE, lambda folder: run(folder, environment, model, options.processes, options.seconds))
        what = f"readers and a trainer of a BERT of {size_of(model)} MB"
    report(options, HERE, what, runs, agree)


def agree(readers: List[Dict[int, float]], others: List[Dict[int, float]]) -> bool:
    """Whether all readers of both runs have the same loss for the same version: both trainers have the same seed."""
    first: Dict[int, float] = {}
    pairs = [item for losses in readers + others for item in losses.items()]
    return all(math.isclose(first.setdefault(version, loss), loss, rel_tol=1e-3) for version, loss in pairs)


if __name__ == "__main__":
    main()
