"""Processes of a Ray cluster that hang, and do not end: all that waits for one gets an error that names it."""

import contextlib
import os
import re
import signal
import sys
import time

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")

from functions_common import stop_process  # noqa: E402
from ray_common import agent_pid, cluster_of, nothing_is_kept  # noqa: E402

import cotensor.ray  # noqa: E402
from cotensor import IoError  # noqa: E402
from cotensor.ray import peers  # noqa: E402

pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = 1 << 20


@ray.remote(num_cpus=0.1)
class Worker:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def make(self):
        return {"x": np.full(COUNT, 3, "u1")}

    def total(self, value):
        return int(value["x"].sum())

    def status(self):
        return cotensor.ray.status()

    def named(self, name):
        return cotensor.ray.get(name).shape


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("one", "two") as cluster:
        yield cluster


@pytest.fixture
def workers(cluster):
    """A worker of each of two nodes, which have agents that know each other."""
    workers = [Worker.options(resources={name: 1}).remote() for name in ("one", "two")]
    one, two = workers
    assert ray.get([one.total.remote(two.make.remote()), two.total.remote(one.make.remote())]) == [3 * COUNT] * 2
    nothing_is_kept()
    yield workers
    for worker in workers:
        ray.kill(worker)
    nothing_is_kept()


@contextlib.contextmanager
def stopped(pid):
    """A block in which a process hangs."""
    stop_process(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def within(seconds):
    """A block that has several times the time that is promised."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def test_an_agent_of_the_own_node_that_hangs_is_named(workers):
    one, two = workers
    own, far, node = one.make.remote(), two.make.remote(), ray.get(one.node.remote())
    ray.wait([own, far], num_returns=2)
    with stopped(agent_pid(node)), within(120):
        for hangs in (lambda: one.total.remote(far), lambda: one.named.remote("nowhere"), one.make.remote):
            with pytest.raises(Exception, match=f"IoError.*the agent of this node, the actor '{node}' .*does not answer"):
                ray.get(hangs())
        assert ray.get(one.total.remote(own)) == 3 * COUNT, "which needs no agent"
    assert ray.get(one.total.remote(far)) == 3 * COUNT


def test_an_agent_of_another_node_that_hangs_is_an_error_in_time(workers):
    one, two = workers
    made, node = one.make.remote(), ray.get(one.node.remote())
    ray.wait([made])
    with stopped(agent_pid(node)):
        with within(20), pytest.raises(Exception, match=f"of node {node}: the node does not answer"):
            ray.get(two.total.remote(made))
        with within(20):
            found = cotensor.ray.status()
        assert "does not answer" in found.pop(node)["error"] and not any("error" in other for other in found.values())
    assert ray.get(two.total.remote(made)) == 3 * COUNT


def test_nothing_waits_for_a_head_that_hangs(cluster, workers):
    one, two = workers
    made = one.make.remote()
    ray.wait([made])
    with stopped(cluster.head_node.all_processes["gcs_server"][0].process.pid):
        # The agents know each other.
        assert ray.get(two.total.remote(made), timeout=30) == 3 * COUNT
        with within(30), pytest.raises(Exception, match="the head of the Ray cluster does not answer"):
            ray.get(two.named.remote("nowhere"))
        with within(20), pytest.raises(IoError, match="the head of the Ray cluster does not answer"):
            cotensor.ray.status()
    with pytest.raises(Exception, match="no node has a tensor 'nowhere'"):
        ray.get(two.named.remote("nowhere"))


def actor_of(node):
    return peers.running_agent(node)._actor_id.hex()


def note(node, version, actor):
    """Notes a version as an agent does."""
    head = ray._private.worker.global_worker.gcs_client
    head.internal_kv_put(node.encode(), f"{version} {actor}".encode(), True, b"cotensor")


def named(node):
    """What an error says of a node with another version."""
    return f"node {node} has Cotensor 0.0.1, and this process on node .* has {cotensor.__version__}"


def test_an_agent_of_another_version_is_named(workers):
    one, two = workers
    made, node = two.make.remote(), ray.get(two.node.remote())
    ray.wait([made])
    actor = actor_of(node)
    assert peers.version_of(node, actor) == cotensor.__version__
    # Processes that have not found this agent before.
    fresh = Worker.options(resources={"one": 1}).remote()
    ray.kill(peers.running_agent(ray.get(one.node.remote())), no_restart=False)
    note(node, "0.0.1", actor)
    try:
        for call in (fresh.total.remote(made), fresh.named.remote("nowhere")):
            with pytest.raises(Exception, match=f"UnsupportedError.*{named(node)}"):
                ray.get(call)
        assert re.match(named(node), ray.get(fresh.status.remote())[node]["error"])
    finally:
        note(node, cotensor.__version__, actor)
    assert ray.get(fresh.total.remote(made)) == 3 * COUNT
    ray.kill(fresh)


def test_an_agent_that_was_replaced_is_compared_again(workers):
    """Each of two programs may have a version of its own. The agents know each other."""
    one, two = workers
    node = ray.get(two.node.remote())
    former = actor_of(node)
    # Ray starts the actor again, as if with another version than before.
    note(node, "0.0.1", former)
    ray.kill(peers.running_agent(node), no_restart=False)
    made = two.make.remote()
    ray.wait([made])
    actor = actor_of(node)
    assert actor != former, "an actor has one version"
    note(node, "0.0.1", actor)
    try:
        with pytest.raises(Exception, match=f"UnsupportedError.*{named(node)}"):
            ray.get(one.total.remote(made))
    finally:
        note(node, cotensor.__version__, actor)
    assert ray.get(one.total.remote(made)) == 3 * COUNT
