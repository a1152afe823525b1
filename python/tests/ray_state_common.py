"""What the processes of a Ray cluster keep: bytes, leases, tokens and descriptors."""

from __future__ import annotations

import collections
import contextlib
import os
import re

import pytest
import ray
from ray_common import agent_pid, daemon, until

import cotensor.ray
from cotensor import CotensorError
from cotensor.ray.peers import running_agent
from cotensor.ray.process import Process


def sockets(ports):
    """The Unix sockets of this machine and those of transfers. How many others Ray has to other nodes changes by itself."""
    unix, tcp = ([line.split() for line in open(f"/proc/net/{name}").readlines()[1:]] for name in ("unix", "tcp"))
    transfers = [line[9] for line in tcp if {int(end.split(":")[1], 16) for end in line[1:3]} & ports]
    return {f"socket:[{inode}]" for inode in transfers + [line[6] for line in unix]}


def opened(pid):
    """What the descriptors of a process show."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def agents_state(nodes):
    """Of the agent of each node: the port of its transfers, and the numbers of live tokens, without those that this process has
    in reserve, of wanted copies, of nodes in its trees, of copies on their way and of streams."""
    reserve = {token.binary() for token in Process.current()._tokens}

    def of(agent):
        tokens, server = agent._holdings._live - reserve, agent._server
        kept = [tokens, agent._holdings._wanted, agent._trees.nodes(), agent._pulls._arrivals, server._waiting]
        return server.address[1], [*map(len, kept), server._serving]

    return dict(zip(nodes, ray.get([running_agent(node).__ray_call__.remote(of) for node in nodes])))


def state():
    """Of each node: the tensors of its store, their bytes and holders, the tensors of handles and the copies, and the numbers of
    :func:`agents_state`; and the numbers of the open descriptors of the agent and the daemon, by what they show. None while one
    of them starts."""
    found = {}
    try:
        nodes = cotensor.ray.status()
        agents = agents_state(nodes)
        known = sockets({port for port, _ in agents.values()})
        for node, one in nodes.items():
            with cotensor.Store.connect(one["socket"], autostart=False) as store:
                stats = store.get_stats()
            numbers = [stats[name] for name in ("total_tensors", "memory_usage_bytes", "total_models")]
            pids = daemon(one["socket"]) | {agent_pid(node)}
            shown = [one for pid in pids for one in opened(pid) if one in known or not one.startswith(("socket:", "/tmp/ray/"))]
            # Each thread that has read its page table keeps the file.
            shown = [one for one in shown if not one.endswith("/pagemap")]
            # Numbers and ids, which are others in the next life of a process.
            descriptors = collections.Counter(re.sub("[0-9a-f]*[0-9][0-9a-f]*", "N", one) for one in shown)
            found[node] = (numbers + [one["kept"], one["copies"], *agents[node][1]], descriptors)
    except (KeyError, ValueError, OSError, CotensorError, ray.exceptions.RayError):
        return None
    return found


def returns_to(before):
    """Waits until all is as before, and no more descriptors of any kind are open."""

    def is_so():
        now = state()
        return now is not None and all(
            now[node][0] == numbers and not now[node][1] - descriptors for node, (numbers, descriptors) in before.items()
        )

    try:
        until("all is as before", is_so)
    except AssertionError:
        pytest.fail(f"{before} before, {state()} now")
