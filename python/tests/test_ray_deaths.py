"""Processes of a Ray cluster that are killed while tensors are used or copied: memory, leases and descriptors are as before."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")

from functions_common import stop_process  # noqa: E402
from ray_common import NODE, agent_pid, cluster_of, daemon, until  # noqa: E402
from ray_state_common import returns_to, state  # noqa: E402

import cotensor.ray  # noqa: E402
from cotensor import CotensorError  # noqa: E402

pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = 1 << 20
#: It comes for long enough to stop its agent meanwhile.
LARGE = 512 << 20
#: The names of tensors that tests put.
LEFT = "left"


@ray.remote(num_cpus=0.1)
class Worker:
    def pid(self):
        return os.getpid()

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def make(self, count):
        return {"x": np.full(count, 3, "u1")}

    def hold(self, value):
        self.held = value
        return int(value["x"][-1])


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("one") as cluster:
        yield cluster


@contextlib.contextmanager
def work(step, origin=None, consumer="one"):
    """A block while the consumer holds an array, or while one is coming to its node: the agent of the array's node is stopped."""
    producer = Worker.options(resources={origin: 1} if origin else {}).remote()
    user = Worker.options(resources={consumer: 1}).remote()
    pids = {"producer": ray.get(producer.pid.remote()), "consumer": ray.get(user.pid.remote())}
    nodes = {"producer": ray.get(producer.node.remote()), "consumer": ray.get(user.node.remote())}
    # Both nodes have an agent and a daemon.
    assert ray.get(user.hold.remote(producer.make.remote(COUNT))) == 3
    if step == "held":
        made = producer.make.remote(COUNT)
        array = ray.get(made)["x"]
        assert ray.get(user.hold.remote(made)) == 3
        yield pids, nodes
        assert array[-1] == 3, "what a process has opened stays"
    else:
        made = producer.make.remote(LARGE)
        ray.wait([made])
        agent = agent_pid(nodes["producer"])
        with cotensor.Store.connect(cotensor.ray.status()[nodes["consumer"]]["socket"], autostart=False) as store:
            asked = user.hold.remote(made)
            until("the copy has memory", lambda: store.get_stats()["memory_usage_bytes"] >= LARGE)
        stop_process(agent)
        try:
            assert not ray.wait([asked], timeout=0)[0], "the copy is here"
            yield {**pids, "agent": agent}, nodes
        finally:
            try:
                os.kill(agent, signal.SIGCONT)
            except ProcessLookupError:
                pass
        try:
            ray.get(asked, timeout=60)
        except (CotensorError, ray.exceptions.RayError) as error:
            assert not isinstance(error, ray.exceptions.GetTimeoutError)
        del asked
    del made
    for one in (producer, user):
        ray.kill(one)


@pytest.fixture
def before(cluster):
    """The state without tensors, after this process and both nodes have connections for all that they do."""
    for origin in (None, "one"):
        with work("held", origin):
            pass
    found = []

    def is_empty():
        found[:] = [state()]
        return found[0] is not None and not any(any(numbers) for numbers, _ in found[0].values())

    until("no tensor is there", is_empty)
    return found[0]


@pytest.mark.parametrize("step", ["held", "coming"])
@pytest.mark.parametrize("victim", ["producer", "consumer", "agent", "daemon"])
def test_nothing_stays_of_what_a_killed_process_used(before, victim, step):
    with work(step) as (pids, nodes):
        if victim == "agent":
            killed = [pids.get("agent") or agent_pid(nodes["producer"])]
        elif victim == "daemon":
            killed = daemon(cotensor.ray.status()[nodes["consumer"]]["socket"])
        else:
            killed = [pids[victim]]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
    returns_to(before)


@pytest.mark.parametrize("origin, consumer, step", [("late", "one", "held"), ("late", "one", "coming"), (None, "late", "held")])
def test_nothing_stays_of_what_a_killed_node_used(cluster, before, origin, consumer, step):
    late = cluster.add_node(**NODE, resources={"late": 100})
    with work(step, origin, consumer):
        cluster.remove_node(late, allow_graceful=False)

    def is_free():
        """Without a lease, the copies of a node that has ended stay until their memory is needed."""
        for one in (cotensor.ray.status()[node] for node in before):
            with cotensor.Store.connect(one["socket"], autostart=False) as store:
                store.optimize_memory_usage()
                if store.get_stats()["total_tensors"]:
                    return False
        return True

    until("all memory is free", is_free)
    returns_to(before)


def test_nothing_stays_of_a_killed_driver_but_its_names(cluster, before):
    program = """
        import sys, numpy, ray, cotensor.ray
        cotensor.ray.init(sys.argv[1], log_to_driver=False)

        @ray.remote(num_cpus=0.1)
        class Worker:
            def make(self):
                return {"x": numpy.ones(1 << 20, "u1")}

            def hold(self, value):
                self.held = value

        producer, consumer = Worker.remote(), Worker.options(resources={"one": 1}).remote()
        made, put = producer.make.remote(), ray.put(numpy.ones(1 << 20, "u1"))
        array = ray.get(made)["x"]
        ray.get(consumer.hold.remote(made))
        cotensor.ray.store().put(sys.argv[2], numpy.ones(1 << 20, "u1"))
        print("ready", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", "\n".join(line[8:] for line in program.splitlines()), cluster.address, LEFT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert any(line == "ready\n" for line in driver.stdout)
            assert state()[ray.get_runtime_context().get_node_id()][0][3] == 2, "two tensors are kept for handles"
        finally:
            driver.kill()
    store = cotensor.ray.store()
    until("the lease of the name has ended", lambda: store._leases(LEFT) and not any(store._leases(LEFT).values()))
    store.remove(LEFT)
    returns_to(before)
