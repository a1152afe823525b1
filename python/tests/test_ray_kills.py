"""Processes of a Ray cluster that are killed at one step of a publication or a copy, which is paused there.

Memory, leases, tokens and descriptors are as before, and a copy goes on where another process can send it.
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")

from functions_common import is_stopped  # noqa: E402
from ray_common import NODE, agent_pid, cluster_of, counts, daemon, until  # noqa: E402
from ray_state_common import returns_to, state  # noqa: E402

import cotensor.ray  # noqa: E402
from cotensor.ray import transfer  # noqa: E402
from cotensor.ray.peers import running_agent  # noqa: E402
from cotensor.ray.process import Process  # noqa: E402

pytestmark = pytest.mark.timeout(240)
# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

COUNT = 1 << 20
#: It comes over four streams.
LARGE = 64 << 20
HEAD = "node:__internal_head__"


def stop():
    """Stops this process, until it is killed."""
    os.kill(os.getpid(), signal.SIGSTOP)


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

    def publish(self, step, how, consumer):
        """Stops when the tensor has memory, when it is put, or when the agent keeps it, before its handle is submitted."""
        keep = Process._keep

        def stopped(process, *arguments):
            token = keep(process, *arguments) if step == "kept" else None
            stop()
            return token

        if step == "reserved":
            builder = cotensor.ray.store().empty("reserved", (COUNT,), "uint8")
            stop()
            del builder
        Process._keep = stopped
        value = {"x": np.full(COUNT, 3, "u1")}
        if how == "put":
            ray.put(value)
        elif how == "argument":
            consumer.hold.remote(value)
        return value


def worker(place):
    return Worker.options(resources={place: 0.01}).remote()


class Half:
    """What a server reads. It sends the first half of each stream, and the second one when the gate is open."""

    def __init__(self, found, gate):
        self.found, self.gate = found, gate

    @property
    def size(self):
        return self.found.size

    def wait(self, offset, timeout):
        for start, end in transfer.ranges_of(self.size):
            middle = (start + end) // 2
            if start <= offset < middle:
                return min(middle, self.found.wait(offset, timeout))
        return self.found.wait(offset, timeout) if self.gate.wait(timeout) else offset

    def part(self, start, end):
        return self.found.part(start, end)


def close_gate(agent):
    agent.gate, agent.find = threading.Event(), agent._server._find
    agent._server._find = lambda name: Half(agent.find(name), agent.gate)


def open_gate(agent):
    agent._server._find = agent.find
    agent.gate.set()


def set_silence(seconds):
    """A function that sets the time without a byte in which an agent gives a copy up. Returns the former one."""

    def set_it(agent):
        before, transfer.SILENCE_TIMEOUT = transfer.SILENCE_TIMEOUT, seconds
        return before

    return set_it


def run_in(node, function):
    """Runs a function in the agent of a node."""
    return ray.get(running_agent(node).__ray_call__.remote(function))


def sent(node):
    return cotensor.ray.status()[node].get("sent_bytes", 0)


@contextlib.contextmanager
def half_sent(node, *patient):
    """A block in which the agent of a node sends the first half of each stream, for which those of ``patient`` wait. Yields a
    function that waits until this half is sent."""
    before = sent(node)
    silences = {one: run_in(one, set_silence(60)) for one in patient}
    run_in(node, close_gate)
    try:
        yield lambda: until("half is sent", lambda: sent(node) - before >= LARGE // 2)
    finally:
        # The next life of an agent that was killed has no gate.
        for one, function in [(node, open_gate), *((one, set_silence(silence)) for one, silence in silences.items())]:
            with contextlib.suppress(ValueError, AttributeError, ray.exceptions.RayError):
                run_in(one, function)


def server_of(socket):
    """The server of a daemon, which its supervisor has started."""
    pids = daemon(socket)
    parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    [server] = [pid for pid, parent in parents.items() if parent in pids]
    return server


def kill(victim, node):
    """Kills a process of a node."""
    socket = cotensor.ray.status()[node]["socket"]
    pids = {"agent": lambda: [agent_pid(node)], "server": lambda: [server_of(socket)], "daemon": lambda: daemon(socket)}
    for pid in pids[victim]():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("one") as cluster:
        yield cluster


def workers_of(*places):
    """A worker for each of two places, whose agents have sent arrays to each other."""
    near, far = (worker(place) for place in places)
    assert ray.get([far.hold.remote(near.make.remote(COUNT)), near.hold.remote(far.make.remote(COUNT))]) == [3, 3]
    return near, far


@pytest.fixture(scope="module")
def before(cluster):
    """The state without tensors and workers."""
    for one in workers_of(HEAD, "one"):
        ray.kill(one)
    found = []

    def is_empty():
        found[:] = [state()]
        return found[0] is not None and not any(any(numbers) for numbers, _ in found[0].values())

    until("no tensor is there", is_empty)
    return found[0]


@pytest.fixture
def workers(before):
    """A worker of the head and one of the other node. After a test, all is as before."""
    workers = workers_of(HEAD, "one")
    yield workers
    for one in workers:
        ray.kill(one)
    # Errors of calls, with the references of their frames.
    gc.collect()
    returns_to(before)


STEPS = [("reserved", "none"), ("put", "result"), ("put", "argument"), ("kept", "result"), ("kept", "argument"), ("kept", "put")]


@pytest.mark.parametrize("step, how", STEPS)
def test_nothing_stays_of_a_producer_that_is_killed_while_it_publishes(workers, step, how):
    near, far = workers
    pid, node = ray.get(near.pid.remote()), ray.get(near.node.remote())
    asked = near.publish.remote(step, how, far)
    until("the producer is at the step", lambda: is_stopped(pid))
    numbers, _ = state()[node]
    assert numbers[1] >= COUNT, "its tensor is there"
    assert numbers[3] == (step == "kept"), "it is kept for a handle"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(asked)


@pytest.mark.parametrize("victim", ["agent", "server"])
def test_a_copy_goes_on_when_a_process_of_its_node_is_killed(workers, victim):
    near, far = workers
    made, (origin, node) = near.make.remote(LARGE), ray.get([one.node.remote() for one in workers])
    ray.wait([made])
    with half_sent(origin, node) as until_half:
        asked = far.hold.remote(made)
        until_half()
        kill(victim, node)
    assert ray.get(asked, timeout=60) == 3


def test_nothing_stays_of_a_copy_whose_node_is_killed(cluster, workers):
    near, _ = workers
    late = cluster.add_node(**NODE, resources={"late": 100})
    user = worker("late")
    origin, node = ray.get([one.node.remote() for one in (near, user)])
    assert ray.get(user.hold.remote(near.make.remote(COUNT))) == 3
    made = near.make.remote(LARGE)
    ray.wait([made])
    with half_sent(origin, node) as until_half:
        asked = user.hold.remote(made)
        until_half()
        cluster.remove_node(late, allow_graceful=False)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(asked, timeout=60)


@pytest.mark.parametrize("victim", ["producer", "server", "daemon"])
def test_a_copy_goes_on_when_a_process_of_the_tensors_node_is_killed(workers, victim):
    near, far = workers
    made, (origin, node) = near.make.remote(LARGE), ray.get([one.node.remote() for one in workers])
    ray.wait([made])
    with half_sent(origin, node) as until_half:
        asked = far.hold.remote(made)
        until_half()
        if victim == "producer":
            os.kill(ray.get(near.pid.remote()), signal.SIGKILL)
        else:
            kill(victim, origin)
    # Its agent ends some seconds after a daemon that was killed with its supervisor.
    with contextlib.suppress(*[cotensor.CotensorError] * (victim == "daemon")):
        assert ray.get(asked, timeout=60) == 3


@pytest.mark.parametrize("place", [HEAD, "one"])
def test_handles_stay_when_the_server_of_a_daemon_is_killed(workers, place):
    near, far = workers
    killed = ray.get((near if place == HEAD else far).node.remote())
    held, opened, never = (near.make.remote(COUNT) for _ in range(3))
    array = ray.get(opened)["x"]
    assert ray.get(far.hold.remote(held)) == 3
    kill("server", killed)
    other = worker("one")
    # Handles of before, also those that no process has opened, and new ones.
    assert ray.get([other.hold.remote(one) for one in (held, opened, never, near.make.remote(COUNT))]) == [3] * 4
    assert array[-1] == 3
    ray.kill(other)


@contextlib.contextmanager
def driver(program, *arguments):
    """A block while another driver runs, which is killed then."""
    head = "import os, signal, sys, numpy, ray, cotensor.ray\ncotensor.ray.init(sys.argv[1], log_to_driver=False)\n"
    with subprocess.Popen([sys.executable, "-c", head + textwrap.dedent(program), *arguments]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("step", ["put", "kept"])
def test_nothing_stays_of_a_driver_that_is_killed_while_it_publishes(cluster, workers, step):
    program = """
        from cotensor.ray.process import Process

        keep = Process._keep

        def stopped(process, *arguments):
            token = keep(process, *arguments) if sys.argv[2] == "kept" else None
            os.kill(os.getpid(), signal.SIGSTOP)

        Process._keep = stopped
        ray.put(numpy.ones(1 << 20, "u1"))
    """
    node = ray.get(workers[0].node.remote())
    with driver(program, cluster.address, step) as process:
        until("the driver is at the step", lambda: is_stopped(process.pid))
        numbers, _ = state()[node]
        assert numbers[1] >= COUNT and numbers[3] == (step == "kept")


@pytest.mark.parametrize("is_ended", [False, True])
def test_nothing_stays_of_a_driver_that_is_killed_while_a_copy_comes(cluster, workers, is_ended):
    """``is_ended``: the token of its array ends while bytes still come."""
    program = """
        @ray.remote(num_cpus=0.1, resources={"one": 0.01})
        class Worker:
            def make(self, count):
                return {"x": numpy.ones(count, "u1")}

        made = Worker.remote().make.remote(int(sys.argv[2]))
        ray.wait([made])
        ray.get(made)
    """
    node, origin = ray.get([one.node.remote() for one in workers])
    with half_sent(origin, node) as until_half:
        with driver(program, cluster.address, str(LARGE)):
            until_half()
        if is_ended:
            until("its token has ended", lambda: not counts("kept")[origin])
            assert state()[node][0][1] >= LARGE, "the copy is still on its way"


RELAYS = [("whole", "node"), ("arriving", "node"), ("arriving", "agent"), ("arriving", "server"), ("arriving", "daemon")]


@pytest.mark.parametrize("copy, victim", RELAYS)
def test_a_copy_goes_on_when_the_node_that_serves_it_is_killed(cluster, workers, copy, victim):
    """The node is the parent of another one in the tree, with a whole copy, or with one that is on its way itself."""
    near, far = workers
    late = cluster.add_node(**NODE, resources={"late": 100})
    relay = worker("late")
    origin, node, parent = ray.get([one.node.remote() for one in (near, far, relay)])
    assert ray.get(relay.hold.remote(near.make.remote(COUNT))) == 3
    made = near.make.remote(LARGE)
    if copy == "whole":
        assert ray.get(relay.hold.remote(made)) == 3
    before, sent_before = sent(parent), sent(origin)
    with half_sent(parent if copy == "whole" else origin, node, parent) as until_half:
        if copy == "arriving":
            first = relay.hold.remote(made)
            until_half()
        asked = far.hold.remote(made)
        # A copy on its way is announced in steps.
        until("the other node has bytes of it", lambda: sent(parent) - before >= LARGE // 4)
        if victim == "node":
            cluster.remove_node(late, allow_graceful=False)
        else:
            kill(victim, parent)
    assert ray.get(asked, timeout=60) == 3
    if victim == "node":
        assert sent(origin) - sent_before < (1 if copy == "whole" else 1.5) * LARGE, "each stream goes on at its byte"
    else:
        # Without a daemon, its call has an error.
        with contextlib.suppress(*[cotensor.NoDaemonError] * (victim == "daemon")):
            assert ray.get(first, timeout=60) == 3
        ray.kill(relay)
        cluster.remove_node(late)
