"""Memory of the weights of a sentence encoder: replicas of Ray Serve on two nodes of this machine, with Cotensor and without.

    python benches/ray_serve.py [--replicas N] [--json FILE]

The encoder is a BERT of transformers in the size of all-MiniLM-L6, with seeded weights. The figure is the proportional memory
(Pss) of the mappings that have weights in the replicas and the daemons, after all replicas have answered.
Needs the environment `bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import ray
import torch
import transformers
from ray import serve
from ray.cluster_utils import Cluster

import cotensor.ray
import cotensor.torch

SIZE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
#: The names of the memory of tensors contain it.
MEMORY = "memfd:cotensor"
#: The time for all replicas to answer, in seconds.
TIMEOUT = 300.0


def maps(pid: "int | str") -> Iterator[Tuple[int, int, str, int]]:
    """Start, end, name and Pss of the mappings of a process."""
    start, end, name = 0, 0, ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (.*)", line)
        if head:
            start, end, name = int(head[1], 16), int(head[2], 16), head[3]
        elif line.startswith("Pss:"):
            yield start, end, name, int(line.split()[1]) << 10


def pss_of(weights: Iterable[torch.Tensor]) -> float:
    """The proportional memory of weights in this process, and of all tensors of Cotensor: it may map one twice."""
    places = [(weight.data_ptr(), weight.data_ptr() + weight.nbytes) for weight in weights]
    total = 0.0
    for start, end, name, pss in maps("self"):
        inside = sum(max(0, min(end, last) - max(start, first)) for first, last in places)
        total += pss if MEMORY in name else pss * inside / (end - start)
    return total


@serve.deployment(ray_actor_options={"num_cpus": 0.01})
class Encoder:
    def __init__(self, is_shared: bool) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        shared = cotensor.torch.shared_weights("encoder", cotensor.ray.store()) if is_shared else contextlib.nullcontext()
        with shared:
            self.model = transformers.AutoModel.from_config(transformers.BertConfig(**SIZE)).eval()

    def embed(self, tokens: List[int]) -> List[float]:
        with torch.inference_mode():
            found = self.model(torch.tensor([tokens])).last_hidden_state
        return found.mean(1)[0].tolist()  # type: ignore[no-any-return]

    def weights(self) -> Tuple[int, str, int, float]:
        """Process, node, size of the weights and their proportional memory here."""
        self.embed(list(range(16)))
        weights = list(self.model.parameters())
        with torch.inference_mode():
            # Pages that no process has read do not count.
            for weight in weights:
                weight.sum()
        node = ray.get_runtime_context().get_node_id()
        return os.getpid(), node, sum(weight.nbytes for weight in weights), pss_of(weights)


def measured(is_shared: bool, replicas: int) -> Dict[str, float]:
    options: Dict[str, Any] = {"num_replicas": replicas, "max_replicas_per_node": -(-replicas // 2)}
    handle = serve.run(Encoder.options(**options).bind(is_shared), name="encoder", route_prefix=None)
    end, found = time.monotonic() + TIMEOUT, {}
    # The second time all have loaded.
    for _ in range(2):
        found = {}
        while len(found) < replicas and time.monotonic() < end:
            for answer in [handle.weights.remote() for _ in range(replicas)]:
                pid, node, size, pss = answer.result(timeout_s=TIMEOUT)
                found[pid] = node, size, pss
    assert len(found) == replicas, f"{len(found)} of {replicas} replicas have answered"
    daemons = sum(pss_of_daemon(one["socket"]) for one in cotensor.ray.status().values() if "socket" in one) if is_shared else 0
    serve.delete("encoder")
    size = next(iter(found.values()))[1]
    total = sum(pss for _, _, pss in found.values()) + daemons
    return {"replicas": replicas, "nodes": len({node for node, _, _ in found.values()}), "size": size, "pss": total}


def pss_of_daemon(socket: str) -> int:
    """The memory of tensors that a daemon has mapped itself."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdecimal() else []
            if b"serve" in words and socket.encode() in words:
                return sum(pss for _, _, name, pss in maps(folder.name) if MEMORY in name)
    return 0


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    node = {"num_cpus": 2, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    cotensor.ray.init(cluster.address, log_to_driver=False)
    figures = {}
    for name, is_shared in (("Cotensor", True), ("without", False)):
        figures[name] = found = measured(is_shared, options.replicas)
        copies = found["pss"] / found["size"]
        print(f"{name}: {found['replicas']} replicas on {found['nodes']} nodes, weights of {found['size'] / 1e6:.1f} MB")
        print(f"  {found['pss'] / 1e6:.1f} MB in all, {copies:.2f} copies", flush=True)
    print(f"{os.cpu_count()} cores, Ray {ray.__version__}, Python {sys.version.split()[0]}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
