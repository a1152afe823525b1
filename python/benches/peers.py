"""Compares Cotensor with its peers in one run on one machine: ratios, and the machine's description.

    python benches/peers.py [--rounds N] [--json FILE] [--only arrays,calls,models,processes,engines] [--no-ray] [--engine NAME]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from typing import Any, Dict, Optional

import arrays
import calls
import engines
import models
import processes
from measure import daemon

PARTS = {"arrays": arrays.run, "calls": calls.run, "models": models.run, "processes": processes.run, "engines": engines.run}

#: Targets: a figure, the figure that divides it (or none), and the maximum of the ratio.
BOUNDS = [
    ("cotensor get -> torch, held", None, 15e-6),
    ("cotensor get -> torch, held", "ray.get -> torch", 1 / 5),
    ("cotensor first get -> torch", "ray.get -> torch", 1.0),
    ("cotensor put", "ray.put", 1.0),
    ("cotensor call", "bare echo of 200 bytes", 4.0),
    ("cotensor call", "HTTP, pickled and hex-encoded", 1 / 10),
    ("cotensor call", "ray actor call", 1 / 3),
    ("attach + touch every page", None, 0.050),
    ("attach", "from_pretrained", 1 / 10),
    ("attach + touch every page", "from_pretrained + touch every page", 1 / 10),
    ("attach + touch every page", "load_file + load_state_dict(assign) + touch every page", 1.0),
    ("build + attach", "from_pretrained", 0.6),
    ("shared_weights + from_pretrained", "from_pretrained", 1.0),
    ("memory of four processes, bytes", "memory of one process, bytes", 1.15),
    ("processes, mapped, shared, bytes", "processes, mapped, plain, bytes", 1.1),
    ("processes, converted, shared, bytes", "processes, converted, plain, bytes", 0.35),
    ("processes, changed, shared, bytes", "processes, changed, plain, bytes", 0.30),
    ("processes, mapped, shared, bytes", "processes, mapped, forked, bytes", 1.1),
    ("memoised encoder, found", "memoised encoder, computed", 0.05),
    ("engine, run", "engine, plain onnxruntime", 1.05),
    ("engine, four processes, bytes", "engine, one process, bytes", 1.35),
    ("engine, open", None, 0.2),
]


def start_ray() -> Optional[Any]:
    try:
        import ray
    except ImportError:
        return None
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, object_store_memory=3 << 30
    )
    return ray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--engine", default="auto", help="engine of the part `engines`: auto, ort, ort-shared or rten")
    options = parser.parse_args()
    os.environ["COTENSOR_ENGINE"] = options.engine
    ray = None if options.no_ray else start_ray()
    taken: Dict[str, float] = {}
    for part in options.only.split(","):
        print(part, flush=True)
        with daemon() as socket:
            taken.update(PARTS[part](socket, options.rounds, ray))
    machine = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Python {platform.python_version()}"
    print(f"ratios ({machine})")
    ratios = []
    for figure, peer, bound in BOUNDS:
        if figure not in taken or (peer is not None and peer not in taken):
            continue
        value = taken[figure] if peer is None else taken[figure] / taken[peer]
        met = "met" if value <= bound else "MISSED"
        ratios.append({"figure": figure, "over": peer, "value": value, "bound": bound})
        print(f"  {figure + (' / ' + peer if peer else ', s'):82} {value:9.5f}  at most {bound:9.5f}  {met}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine, "seconds": taken, "ratios": ratios}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
