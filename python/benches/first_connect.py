"""The first connection of a machine without a daemon, and many at once.

    python benches/first_connect.py [--rounds N] [--processes N]

Each round is a process with a socket of its own: it measures `cotensor.connect()`, which starts the daemon, and a tensor that is
put and read. The import of the packages is not part of it. Then many processes connect at the same time to one socket.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

#: The bound of the median, in milliseconds.
BOUND_MS = 150
CONNECT = """
import sys, time
import cotensor, numpy
array = numpy.ones(1000, numpy.float32)
if sys.argv[1:]:
    print("ready", flush=True)
    sys.stdin.readline()
start = time.perf_counter()
store = cotensor.connect()
store.put("x/" + "".join(sys.argv[1:]), array)
assert (store.get("x/" + "".join(sys.argv[1:])).numpy() == array).all()
print(1000 * (time.perf_counter() - start), flush=True)
"""


def environment(folder: str) -> Dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COTENSOR_")}
    return {**kept, "COTENSOR_SOCKET": f"{folder}/s", "COTENSOR_CACHE": f"{folder}/cache"}


def command(folder: str, *arguments: str) -> Any:
    run = [sys.executable, "-m", "cotensor", *arguments, "--json"]
    return json.loads(subprocess.run(run, env=environment(folder), stdout=subprocess.PIPE, check=True).stdout)


def first() -> float:
    with tempfile.TemporaryDirectory(prefix="cot-") as folder:
        run = [sys.executable, "-c", CONNECT]
        taken = float(subprocess.run(run, env=environment(folder), stdout=subprocess.PIPE, check=True).stdout)
        command(folder, "stop")
        return taken


def together(count: int) -> List[int]:
    """Processes that connect at the same time. Returns the daemons that run afterwards."""
    with tempfile.TemporaryDirectory(prefix="cot-") as folder:
        pipes: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started = [
            subprocess.Popen([sys.executable, "-c", CONNECT, str(number)], env=environment(folder), **pipes)
            for number in range(count)
        ]
        for process in started:
            assert process.stdout.readline().strip() == "ready"
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in started:
            process.communicate()
            if process.returncode != 0:
                raise RuntimeError("a process could not connect")
        assert len(command(folder, "ls")["tensors"]) <= count
        found = subprocess.run(["pgrep", "-f", f"serve .*--socket {folder}/s"], stdout=subprocess.PIPE, text=True).stdout
        own = command(folder, "status")
        command(folder, "stop")
        servers = {int(line) for line in found.split()}
        return sorted(servers - {own["server"], own["supervisor"]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument("--processes", type=int, default=50, metavar="N")
    given = parser.parse_args()
    times = [first() for _ in range(given.rounds)]
    median = statistics.median(times)
    others = together(given.processes)
    met = median <= BOUND_MS and not others
    print(f"{'met   ' if median <= BOUND_MS else 'MISSED'} first connect(), put and get: {median:.0f} ms, at most {BOUND_MS} ms")
    print(f"{'met   ' if not others else 'MISSED'} {given.processes} processes at once: one daemon, {len(others)} others")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
