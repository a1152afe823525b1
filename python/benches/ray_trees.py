"""The time in which N nodes get copies of a tensor of one node: a simulation of the tree that Cotensor uses, and of others.

    python benches/ray_trees.py [--nodes N ...] [--mib N] [--rate MBS] [--latency MS]

Every node sends at most at the rate of its link and passes parts on as they arrive. Without `--rate`, the rate is measured: of
one transfer over loopback. `all from one`: each node copies from the origin.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from typing import Callable, Dict, List, Optional, Tuple

from cotensor.ray import transfer
from cotensor.ray.arrival import PART_BYTES, Whole
from cotensor.ray.trees import Tree

#: The rules that are compared.
RULES: Dict[str, Callable[[], Tree]] = {
    "as used": Tree,
    "chain": lambda: Tree(1),
    "two each": lambda: Tree(2, 0),
    "four each": lambda: Tree(4, 0),
    "all from one": lambda: Tree(1 << 30, 0),
}


def finish_time(tree: Tree, nodes: int, parts: int, part_seconds: float, latency: float) -> float:
    """The time until `nodes` nodes, which join at once, have all parts. A link sends one part in `part_seconds`."""
    names = [str(number) for number in range(nodes)]
    parents: Dict[str, str] = {}
    for name in names:
        tree.join(name)
        parents[name] = (tree.ancestors(name) or [""])[0]
    children: Dict[str, List[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    here, sent = {name: 0 for name in names}, {name: 0 for name in names}
    here[""] = parts
    is_free = {name: True for name in here}
    # Time, what happens ("sent" by the node, or "came" to it), and the node.
    events: List[Tuple[float, str, str]] = [(0.0, "sent", "")]
    now = 0.0
    while events:
        now, what, node = heapq.heappop(events)
        if what == "came":
            here[node] += 1
        else:
            is_free[node] = True
        waiting = [child for child in children.get(node, []) if sent[child] < here[node]]
        if is_free[node] and waiting:
            child = min(waiting, key=lambda one: sent[one])
            sent[child] += 1
            is_free[node] = False
            heapq.heappush(events, (now + part_seconds, "sent", node))
            heapq.heappush(events, (now + part_seconds + latency, "came", child))
    assert all(count == parts for count in here.values())
    return now


def measured_rate(nbytes: int = 256 << 20) -> float:
    """Bytes per second of one transfer over loopback."""
    data, target = bytes(nbytes), bytearray(nbytes)
    server = transfer.Server("127.0.0.1", lambda name: Whole(data))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        transfer.fetch([(server.address, b"t")], memoryview(target))
        times.append(time.perf_counter() - start)
    server.close()
    return nbytes / min(times)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rate", type=float, help="of a link, in MB/s")
    parser.add_argument("--latency", type=float, default=0.2, help="of a link, in ms")
    options = parser.parse_args(arguments)
    rate = options.rate * 1e6 if options.rate else measured_rate()
    parts = (options.mib << 20) // PART_BYTES
    print(f"{options.mib} MiB, links of {rate / 1e6:.0f} MB/s and {options.latency} ms, seconds until all nodes have it")
    print(f"{'nodes':>6}" + "".join(f"{name:>14}" for name in RULES))
    for nodes in options.nodes:
        found = [finish_time(rule(), nodes, parts, PART_BYTES / rate, options.latency / 1000) for rule in RULES.values()]
        print(f"{nodes:>6}" + "".join(f"{seconds:>14.3f}" for seconds in found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
