"""What tests of cotensor.ray with a cluster use."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster

import cotensor.ray
from cotensor.ray.peers import running_agent

COMMIT = "0123456789abcdef" * 2 + "01234567"
NODE = {"num_cpus": 4, "object_store_memory": 100 << 20}


@contextmanager
def cluster_of(*names, variables=None):
    """A cluster of a head, and a node for each name, which is also its resource. ``nodes`` has the nodes by name. The nodes but
    the head have ``variables`` in their environments."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.nodes = {name: cluster.add_node(**NODE, resources={name: 100}, env_vars=variables) for name in names}
    cotensor.ray.init(cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_model(source, cache, name):
    """Adds a model to a cache of the hub. Returns its folder."""
    folder = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(source, folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return folder / "snapshots" / COMMIT


def daemon(socket):
    """The processes of the daemon of a socket."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and socket.encode() in words:
            found.add(int(pid))
    return found


def agent_pid(node):
    """The process of the agent of a node."""
    return ray.get(running_agent(node).__ray_call__.remote(lambda agent: os.getpid()))


def until(what, done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, f"timed out waiting until {what}"
        time.sleep(0.05)


def counts(name):
    """A number of each node, by its id."""
    return {node: one[name] for node, one in cotensor.ray.status().items() if name in one}


def nothing_is_kept():
    until("all tensors are released", lambda: not any(counts("kept").values()) and not any(counts("copies").values()))
