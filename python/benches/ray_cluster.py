"""Tensors between actors of Ray, with Cotensor and without, on one node and on two nodes of this machine.

    python benches/ray_cluster.py [--rounds N] [--json FILE]

Times are medians of interleaved rounds, in milliseconds, of two calls: a producer returns an array, a consumer gets it and
returns its length. `plasma` are actors without Cotensor; `in place` produces in the store's own memory; `empty` is a pair of
calls without arrays. `TCP` is a transfer over loopback into memory that was used before, with as many streams as Cotensor
has. `four` are four consumers on the other node at once. `get` is one call, in which an actor on the other node gets an array
that `ray.put` has stored before.
Needs the environment `bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import ray
from measure import interleaved
from ray.cluster_utils import Cluster

import cotensor.ray
from cotensor.ray import transfer
from cotensor.ray.arrival import Whole

SIZES = [4 << 10, 16 << 20, 256 << 20]
#: Ray runs it in the workers that have no hook of Cotensor.
NO_HOOK = {"worker_process_setup_hook": "time.time"}


class Actor:
    def make(self, nbytes: int) -> Any:
        if getattr(self, "array", np.zeros(0)).nbytes != nbytes:
            self.array = np.ones(nbytes, "u1")
        return self.array

    def in_place(self, nbytes: int) -> Any:
        with cotensor.ray.store().empty(f"made/{os.getpid()}", (nbytes,), "uint8", keep=False) as builder:
            return builder.publish()

    def put(self, nbytes: int) -> List[Any]:
        # A list: Ray would pass the array itself to a call.
        return [ray.put(self.make(nbytes))]

    def get(self, references: List[Any]) -> int:
        return len(ray.get(references[0]))

    def take(self, array: Any) -> int:
        return len(array)

    def nothing(self, _: Any = None) -> int:
        return 0


def actors(other: bool, plain: bool) -> Any:
    options: Dict[str, Any] = {"num_cpus": 0.01, "resources": {"other": 1} if other else {"head": 1}}
    if plain:
        options["runtime_env"] = NO_HOOK
    return ray.remote(Actor).options(**options).remote()


def raw_tcp(nbytes: int) -> Callable[[], object]:
    data, target = np.ones(nbytes, "u1"), bytearray(nbytes)
    server = transfer.Server("127.0.0.1", lambda name: Whole(data))
    return lambda: transfer.fetch([(server.address, b"t")], memoryview(target))


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    memory = {"num_cpus": 2, "object_store_memory": 2 << 30}
    cluster = Cluster(initialize_head=True, head_node_args={**memory, "resources": {"head": 100}, "include_dashboard": False})
    cluster.add_node(**memory, resources={"other": 100})
    cotensor.ray.init(cluster.address, log_to_driver=False)
    here, there = actors(False, False), actors(True, False)
    consumer, fellows = actors(False, False), [actors(True, False) for _ in range(3)]
    plain_here, plain_there, plain_consumer = actors(False, True), actors(True, True), actors(False, True)

    def pair(maker: Any, takers: List[Any], nbytes: int, how: str = "make") -> Callable[[], object]:
        def run() -> None:
            made = getattr(maker, how).remote(nbytes)
            assert ray.get([taker.take.remote(made) for taker in takers]) == [nbytes] * len(takers)

        return run

    stored: Dict[str, Any] = {}

    def put(maker: Any, name: str, nbytes: int) -> Callable[[], object]:
        return lambda: stored.update({name: ray.get(maker.put.remote(nbytes))})

    def get(taker: Any, name: str, nbytes: int) -> Callable[[], object]:
        def run() -> None:
            assert ray.get(taker.get.remote(stored.pop(name))) == nbytes

        return run

    figures: Dict[str, Dict[str, float]] = {}
    for nbytes in SIZES:
        runs = {
            "empty": lambda: ray.get(consumer.nothing.remote(here.nothing.remote())),
            "plasma": pair(plain_here, [plain_consumer], nbytes),
            "cotensor": pair(here, [consumer], nbytes),
            "in place": pair(here, [consumer], nbytes, "in_place"),
            "TCP": raw_tcp(nbytes),
            "plasma, other node": pair(plain_here, [plain_there], nbytes),
            "other node": pair(here, [there], nbytes),
            "other node, four": pair(here, [there, *fellows], nbytes),
            "plasma, get": get(plain_there, "plasma, get", nbytes),
            "get": get(there, "get", nbytes),
        }
        before = {"plasma, get": put(plain_here, "plasma, get", nbytes), "get": put(here, "get", nbytes)}
        # Pages, connections and copies of code.
        for name, run in runs.items():
            before.get(name, lambda: None)()
            run()
        rounds = options.rounds if nbytes < 64 << 20 else max(3, options.rounds // 3)
        figures[str(nbytes)] = found = interleaved(runs, rounds, before=before)
        if nbytes == SIZES[0]:
            print(f"{'':8}" + "".join(f"{name:>20}" for name in runs), flush=True)
        print(f"{nbytes >> 10:>5} KB" + "".join(f"{1000 * found[name]:>20.2f}" for name in runs), flush=True)
    print(f"{os.cpu_count()} cores, Ray {ray.__version__}, Python {sys.version.split()[0]}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    ray.shutdown()
    cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
