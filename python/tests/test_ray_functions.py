"""Functions that are called from other nodes of a Ray cluster."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from functions_common import stop_process  # noqa: E402
from ray_common import agent_pid, cluster_of, counts, nothing_is_kept, until  # noqa: E402

import cotensor.ray  # noqa: E402
from cotensor import (  # noqa: E402
    CancelledError,
    IoError,
    NotFoundError,
    RemoteError,
    TimedOutError,
    UnsupportedError,
)
from cotensor.ray.agent import running_agent  # noqa: E402

COUNT = 1 << 18
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("one", "two") as cluster:
        yield cluster


@ray.remote(num_cpus=0.1)
class Providing:
    """Provides functions on its node. Their names begin with a prefix."""

    def __init__(self, prefix):
        from cotensor.functions import check_cancelled
        from cotensor.provider import SharedTensorProvider

        self.provider = SharedTensorProvider(store=cotensor.ray.store(), execution_mode="server", tensors="numpy")
        self.ended = []
        self.client = cotensor.ray.Client()

        def where():
            return ray.get_runtime_context().get_node_id()

        def scale(x, factor):
            return {"y": x * factor, "dtype": str(x.dtype), "all": [np.float32(2), None, "text", (1, 2.5)]}

        def fail():
            raise ValueError("bad", 3)

        def slow(seconds):
            end = time.monotonic() + seconds
            try:
                while time.monotonic() < end:
                    time.sleep(0.02)
                    check_cancelled()
            finally:
                self.ended.append("over" if time.monotonic() >= end else "cancelled")

        def calls(function, *args):
            return self.client.call_function(function, args)

        for function in (where, scale, fail, slow, calls):
            self.provider.share(prefix + function.__name__)(function)
        self.provider.share(prefix + "object", managed=True)(lambda: [1])
        self.provider.start()

    def pid(self):
        return os.getpid()

    def how_it_ended(self):
        return self.ended


@ray.remote(num_cpus=0.1)
class Calling:
    """Calls from another process, which can be killed."""

    def pid(self):
        return os.getpid()

    def call(self, name, *args):
        return cotensor.ray.Client().call_function(name, args, timeout=100)


@pytest.fixture
def providing(cluster):
    made = []

    def start(prefix, resource):
        made.append(Providing.options(resources={resource: 1}).remote(prefix))
        ray.get(made[-1].pid.remote())
        return made[-1]

    yield start
    for one in made:
        ray.kill(one)
    until("no node has functions", lambda: not any(counts("functions").values()))


@pytest.fixture
def client(cluster):
    with cotensor.ray.Client(tensors="numpy", timeout=60) as client:
        yield client


def node_of(resource):
    [found] = [node["NodeID"] for node in ray.nodes() if node["Alive"] and resource in node["Resources"]]
    return found


def test_call_goes_to_the_own_node_and_else_to_another(client, providing):
    with pytest.raises(NotFoundError, match="a.where"):
        client.call_function("a.where")
    assert not client.has_function("a.where")
    providing("a.", "one")
    assert client.call_function("a.where") == node_of("one")
    assert client.has_function("a.where") and client.functions.a.where() == node_of("one")
    assert [each["node"] for each in client.list_functions("a.where")] == [node_of("one")]
    assert "a.where" in counts("functions")[node_of("one")]
    with cotensor.provider.SharedTensorProvider(store=cotensor.ray.store(), execution_mode="server") as own:
        own.share("a.where")(lambda: "here")
        assert client.call_function("a.where") == "here"
    assert client.call_function("a.where") == node_of("one")
    with pytest.raises(NotFoundError, match="did you mean 'a.where'"):
        client.call_function("a.were")
    with pytest.raises(NotFoundError):
        client.call_function("cotensor.ray.none")


def test_values_cross(client, providing):
    providing("b.", "one")
    result = client.call_function("b.scale", [np.arange(4, dtype="i4"), 2])
    assert result["y"].tolist() == [0, 2, 4, 6] and result["dtype"] == "int32" and result["y"].flags.writeable
    assert result["all"] == [2, None, "text", (1, 2.5)] and type(result["all"][0]) is np.float32
    large = client.call_function("b.scale", kwargs={"x": np.ones(COUNT, "f4"), "factor": 3})
    assert large["y"].sum() == 3 * COUNT
    with cotensor.ray.Client(tensors="torch") as other:
        for count in (4, COUNT):
            found = other.call_function("b.scale", [torch.ones(count, requires_grad=True), 2])["y"]
            assert type(found) is torch.Tensor and found.sum() == 2 * count
    with cotensor.ray.Client(tensors="cotensor") as other:
        for count in (4, COUNT):
            assert type(other.call_function("b.scale", [np.ones(count), 2])["y"]) is cotensor.Tensor
    del found, large
    with pytest.raises(ValueError, match="bad") as caught:
        client.call_function("b.fail")
    assert isinstance(caught.value, RemoteError) and caught.value.args == ("bad", 3)
    with pytest.raises(TypeError, match="missing a required argument: 'factor'"):
        client.call_function("b.scale", [1])
    with pytest.raises(UnsupportedError, match="stays on the provider's node"):
        client.call_function("b.object")
    with pytest.raises(UnsupportedError, match="builtins.set"):
        client.call_function("b.scale", [{1}, 2])
    nothing_is_kept()


def test_tensor_of_the_store_is_sent_once_for_concurrent_calls(client, providing):
    providing("c.", "one")
    tensor = cotensor.ray.store().put("sent", np.ones(COUNT, "f4"))
    before = sum(counts("sent_bytes").values())
    kept = ray.put(tensor)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.call_function, "c.scale", [tensor, 2]) for _ in range(4)]
        assert [call.result()["y"][0] for call in calls] == [2] * 4
    # Each result is another tensor.
    assert sum(counts("sent_bytes").values()) - before == (1 + 4) * 4 * COUNT
    del calls, tensor, kept
    cotensor.ray.store().remove("sent")
    nothing_is_kept()


def test_a_call_is_passed_on_once_and_functions_call_others(client, providing):
    providing("d.", "one")
    providing("e.", "two")
    assert client.call_function("d.calls", ["e.where"]) == node_of("two")
    assert client.call_function("d.calls", ["e.calls", "d.where"]) == node_of("one")
    # The driver's node offers it; its function is not offered by others in its place.
    with pytest.raises(KeyError, match="d.none"):
        client.call_function("d.calls", ["d.none"])


def test_timeouts_and_cancellation_reach_the_function(client, providing):
    provider = providing("f.", "one")
    node = node_of("one")
    with pytest.raises(TimedOutError, match=f"f.slow on node {node}"):
        client.call_function("f.slow", [60], timeout=0.3)
    until("it is cancelled", lambda: ray.get(provider.how_it_ended.remote()) == ["cancelled"])
    calling = Calling.options(resources={"two": 1}).remote()
    pid = ray.get(calling.pid.remote())
    calling.call.remote("f.slow", 60)
    until("it runs", lambda: counts("running")[node] == ["f.slow"])
    os.kill(pid, signal.SIGKILL)
    until("that of a killed caller is cancelled", lambda: ray.get(provider.how_it_ended.remote()) == ["cancelled"] * 2)
    # A function that is cancelled cancels the calls that it makes.
    providing("g.", "two")
    with pytest.raises((TimedOutError, CancelledError)):
        client.call_function("g.calls", ["f.slow", 60], timeout=0.5)
    until("the inner one ends", lambda: ray.get(provider.how_it_ended.remote()) == ["cancelled"] * 3)
    until("nothing runs", lambda: not any(counts("running").values()))


def test_ends_of_providers_agents_and_nodes_name_function_and_node(client, providing, cluster):
    provider, node = providing("h.", "one"), node_of("one")

    def while_it_runs(end):
        errors = []

        def call():
            try:
                client.call_function("h.slow", [100], timeout=90)
            except IoError as error:
                errors.append((time.monotonic(), error))

        thread = threading.Thread(target=call)
        thread.start()
        until("it runs", lambda: counts("running").get(node) == ["h.slow"])
        began = time.monotonic()
        end()
        thread.join(60)
        [(at, error)] = errors
        assert "h.slow" in str(error) and node in str(error)
        assert at - began < 20, "several times the time that is promised"

    pid = ray.get(provider.pid.remote())
    while_it_runs(lambda: os.kill(pid, signal.SIGKILL))
    until("it is withdrawn", lambda: not client.has_function("h.slow"))
    provider = providing("h.", "one")
    while_it_runs(lambda: ray.kill(running_agent(node), no_restart=False))
    provider_is_back(client, "h.where", node)
    # An agent that does not answer counts as ended.
    agent = agent_pid(node)
    while_it_runs(lambda: stop_process(agent))
    os.kill(agent, signal.SIGCONT)
    # Another node takes calls that have not begun.
    late = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"late": 1})
    there = Providing.options(resources={"late": 0.1}).remote("h.")
    ray.get(there.pid.remote())
    node, back = node_of("late"), node
    client._last["h.slow"] = client._last["h.where"] = node
    assert client.call_function("h.where") == node
    while_it_runs(lambda: cluster.remove_node(late, allow_graceful=False))
    assert client.call_function("h.where") == back


def provider_is_back(client, name, node):
    until(f"{name} is found again", lambda: client.has_function(name))
    assert client.call_function(name) == node

