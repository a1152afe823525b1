"""Tensors in ordinary objects of Ray, on a cluster of two nodes of this machine."""

import os
import signal
import time

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from functions_common import stop_process  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from ray_common import agent_pid, daemon, until  # noqa: E402

import cotensor  # noqa: E402
import cotensor.ray  # noqa: E402
from cotensor.ray.agent import running_agent  # noqa: E402
from cotensor.ray.daemon import socket_of  # noqa: E402
from cotensor.ray.handle import COPY_PREFIX  # noqa: E402

NODE = {"num_cpus": 4, "object_store_memory": 100 << 20}
COUNT = 1 << 18
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.other = cluster.add_node(**NODE, resources={"other": 100})
    cotensor.ray.init(cluster.address, log_to_driver=False)
    yield cluster
    sockets = [str(socket_of(node["NodeID"])) for node in ray.nodes()]
    assert any(map(daemon, sockets))
    ray.shutdown()
    cluster.shutdown()
    until("the daemons end with their nodes", lambda: not any(map(daemon, sockets)))


@ray.remote(num_cpus=0.1, max_restarts=1)
class Worker:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def pid(self):
        return os.getpid()

    def make(self, value, count=COUNT):
        return {"x": np.full(count, value, "f4"), "small": [np.arange(3)]}

    def total(self, value):
        return float(np.asarray(value["x"] if isinstance(value, dict) else value).sum())

    def hold(self, value):
        self.held = value
        return float(np.asarray(value["x"]).sum())

    def drop(self):
        self.held = None

    def belongings(self, group):
        members = {name: (str(one.dtype), one.tobytes()) for name, one in group.members().items()}
        return group.kind, group.producer, group.metadata, members

    def named(self, name):
        with cotensor.ray.get(name) as tensor:
            return float(tensor.numpy().sum())

    def remove(self, name):
        cotensor.ray.store().remove(name, missing_ok=True)

    def kind(self, value):
        return type(value).__name__

    def again(self, value):
        return {"x": value["x"]}

    def twice(self):
        # Actors and tasks that a worker starts have the serializers, too.
        return ray.get(doubled.remote(np.ones(COUNT, "f4")))


@ray.remote(num_cpus=0.1)
def doubled(array):
    return array * 2


@pytest.fixture
def near(cluster):
    worker = Worker.remote()
    yield worker
    ray.kill(worker)


@pytest.fixture
def far(cluster):
    worker = Worker.options(resources={"other": 1}).remote()
    yield worker
    ray.kill(worker)


def counts(name):
    return [one.get(name, 0) for one in cotensor.ray.status().values()]


def nothing_is_kept():
    until("all tensors are released", lambda: not any(counts("kept")) and not any(counts("copies")))


def test_results_arguments_and_put_travel_as_handles(near):
    made = near.make.remote(2.0)
    assert ray.get(near.total.remote(made)) == 2.0 * COUNT
    assert sum(counts("kept")) == 1
    value = ray.get(made)
    assert value["x"].dtype == np.float32 and not value["x"].flags.writeable and value["small"][0].tolist() == [0, 1, 2]
    put = ray.put(np.ones(COUNT, "f4"))
    assert sum(counts("kept")) == 2 and ray.get(near.total.remote(put)) == COUNT
    assert ray.get(near.twice.remote()).sum() == 2 * COUNT
    del made, value, put
    nothing_is_kept()


def test_arguments_are_kept_until_their_task_has_them(near):
    for number in range(30):
        assert ray.get(near.total.remote({"x": np.full(COUNT, number, "f4")})) == number * COUNT
    nothing_is_kept()


def test_another_node_gets_one_copy_for_all_its_processes(near, far):
    assert ray.get(near.node.remote()) != ray.get(far.node.remote())
    others = [Worker.options(resources={"other": 1}).remote() for _ in range(3)]
    made = near.make.remote(3.0, 8 * COUNT)
    pulled, sent = sum(counts("pulled")), sum(counts("sent_bytes"))
    assert ray.get([one.hold.remote(made) for one in [far, *others]]) == [3.0 * 8 * COUNT] * 4
    assert sum(counts("pulled")) - pulled == 1
    assert sum(counts("sent_bytes")) - sent == 4 * 8 * COUNT
    assert (sum(counts("kept")), sum(counts("copies"))) == (1, 1)
    # An object that is passed on has a handle of its own node.
    assert ray.get(near.total.remote(far.again.remote(made))) == 3.0 * 8 * COUNT
    del made
    nothing_is_kept()
    ray.get([one.drop.remote() for one in [far, *others]])
    for one in others:
        ray.kill(one)


def test_a_node_that_has_a_copy_serves_it(cluster, near, far):
    third = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"third": 1})
    last = Worker.options(resources={"third": 0.1}).remote()

    def sent(worker):
        return cotensor.ray.status()[ray.get(worker.node.remote())].get("sent_bytes", 0)

    made, other = near.make.remote(9.0, 8 * COUNT), near.make.remote(10.0, 8 * COUNT)
    assert ray.get([far.total.remote(made), far.hold.remote(other)]) == [9.0 * 8 * COUNT, 10.0 * 8 * COUNT]
    before = sent(near), sent(far)
    assert ray.get(last.total.remote(made)) == 9.0 * 8 * COUNT
    assert (sent(near) - before[0], sent(far) - before[1]) == (0, 4 * 8 * COUNT)
    # The next life of the agent has no copies, and the tensor comes from its own node.
    node = ray.get(far.node.remote())
    ray.kill(running_agent(node), no_restart=False)
    # Until then the former one sends what it has.
    until("the agent runs again", lambda: cotensor.ray.status()[node].get("copies") == 0)
    assert ray.get(last.total.remote(other)) == 10.0 * 8 * COUNT
    assert sent(near) - before[0] == 4 * 8 * COUNT
    del made, other
    ray.get(far.drop.remote())
    nothing_is_kept()
    ray.kill(last)
    cluster.remove_node(third)


def test_tensors_outlive_their_producer(near, far):
    made, pid = near.make.remote(4.0), ray.get(near.pid.remote())
    ray.wait([made])
    os.kill(pid, signal.SIGKILL)
    assert ray.get(far.total.remote(made)) == 4.0 * COUNT
    assert ray.get(made)["x"][0] == 4.0
    del made
    nothing_is_kept()


def test_killed_consumers_leave_nothing(near, far):
    made = near.make.remote(5.0)
    assert ray.get(far.hold.remote(made)) == 5.0 * COUNT
    os.kill(ray.get(far.pid.remote()), signal.SIGKILL)
    del made
    nothing_is_kept()


def test_tensors_of_cotensor_stay_tensors(near, far):
    store = cotensor.ray.store()
    tensor = store.put("named", np.arange(COUNT, dtype="f4"))
    assert ray.get(near.kind.remote(tensor)) == "Tensor"
    expected = float(np.arange(COUNT, dtype="f4")[10:].sum())
    assert ray.get([one.total.remote(tensor[10:]) for one in (near, far)]) == [expected] * 2
    other = cotensor.Store().put("elsewhere", np.ones(COUNT, "f4"))
    assert ray.get(far.total.remote(other)) == COUNT, "of a store in this process"
    del tensor
    store.remove("named")
    nothing_is_kept()


def test_small_tensors_of_cotensor_travel_by_value(near, far):
    store = cotensor.ray.store()
    options = {"kind": "weight", "producer": "p", "metadata": {"bits": 2}}
    with store.put("small", np.arange(1000, dtype="f4"), **options) as tensor, store.put("large", np.arange(COUNT)) as large:
        made = [ray.put(one) for one in (tensor, tensor.view(0, "float32", (10, 100)), large[10:20])]
    assert not any(counts("kept"))
    store.remove("small")
    for one in (near, far):
        assert ray.get([one.kind.remote(each) for each in made]) == ["Tensor"] * 3
        assert ray.get([one.total.remote(each) for each in made]) == [499500.0, 499500.0, 145.0]
        assert ray.get(one.belongings.remote(made[0])) == ("weight", "p", {"bits": 2}, {})
    assert ray.get(made[1]).shape == (10, 100) and not any(counts("copies"))
    until("they end with their last leases", lambda: not set(store.names("ray/")) - set(store.names("ray/copy/")))
    store.remove("large")


def test_groups_keep_their_members_and_what_belongs_to_them(near, far):
    members = {"codes": np.arange(COUNT, dtype="u1"), "scales": np.ones((10, 3), "f4")}
    options = {"kind": "weight", "producer": "p", "metadata": {"bits": 2}}
    with cotensor.ray.store().put_group("group", members, **options) as group:
        made = [ray.put(group), ray.put(group["scales"])]
    expected = ("weight", "p", {"bits": 2}, {name: (one.dtype.name, one.tobytes()) for name, one in members.items()})
    for one in (near, far):
        assert ray.get(one.belongings.remote(made[0])) == expected
        assert ray.get(one.total.remote(made[1])) == 30.0
    # The member first: it is a part of the same copy.
    fresh = [ray.put(one) for one in (cotensor.ray.store().get("group")["scales"], cotensor.ray.store().get("group"))]
    assert ray.get(far.total.remote(fresh[0])) == 30.0
    assert ray.get(far.belongings.remote(fresh[1])) == expected
    for made_of in (np.ones((4, 5), "f8"), members):
        # A store inside of this process.
        put = cotensor.Store().put if made_of is not members else cotensor.Store().put_group
        elsewhere = put("elsewhere", made_of, **options)
        found = expected if made_of is members else (*expected[:3], {})
        assert [ray.get(one.belongings.remote(elsewhere)) for one in (near, far)] == [found] * 2
    assert ray.get(far.total.remote(elsewhere["scales"])) == 30.0
    del made, fresh
    cotensor.ray.store().remove("group")
    nothing_is_kept()


def test_tensor_in_two_handles_leaves_no_copy(far):
    store = cotensor.ray.store()
    with store.put("twice", np.ones(COUNT, "f4")) as tensor:
        first, second = ray.put(tensor), ray.put(tensor)
    pulled = sum(counts("pulled"))
    assert ray.get([far.total.remote(one) for one in (first, second)]) == [COUNT] * 2
    assert sum(counts("pulled")) - pulled == 1
    del first
    until("the first one is released", lambda: sum(counts("kept")) == 1)
    assert ray.get(far.total.remote(second)) == COUNT and sum(counts("copies")) == 1
    del second
    store.remove("twice")
    nothing_is_kept()


def test_what_is_small_or_no_plain_array_travels_inside_of_its_object(near):
    values = [
        np.ones(8),
        np.zeros(0),
        np.array([{"a": 1}] * 100_000, dtype=object),
        np.zeros(100_000, [("a", "f4"), ("b", "i8")]),
        np.ma.masked_array(np.ones(100_000), False),
        np.ones((1,) * 20 + (100_000,)),
    ]
    for value in values:
        found = ray.get(ray.put(value))
        assert type(found) is type(value) and found.dtype == value.dtype and len(found) == len(value)
        assert not any(counts("kept"))
    contained = np.array([None], dtype=object)
    contained[0] = contained
    found = ray.get(ray.put(contained))
    assert found[0] is found
    contained[0] = None
    for value in values:
        assert b"cotensor" not in ray.cloudpickle.dumps(value), "it can be read without Cotensor"
    large = np.full(COUNT, 7, "f4")

    @ray.remote(num_cpus=0.1)
    def closure():
        return float(large.sum())

    assert ray.get(closure.remote()) == 7.0 * COUNT
    nothing_is_kept()


def test_every_dtype_and_order_is_the_same_elsewhere(far):
    for array in [
        np.arange(COUNT, dtype="i8").reshape(512, -1),
        np.asfortranarray(np.arange(COUNT, dtype="f8").reshape(512, -1)),
        np.arange(4 * COUNT, dtype="u2")[::-2],
        np.ones(COUNT, "c8") * 1j,
        np.arange(COUNT) % 2 == 0,
        np.full(COUNT, "2026-11-27", "M8[D]"),
        np.ones(COUNT, ">f4"),
    ]:
        found = ray.get(same.options(resources={"other": 1}).remote(array))
        assert found.dtype == array.dtype and np.array_equal(found, array)
        assert found.flags.c_contiguous or array.flags.f_contiguous and found.flags.f_contiguous


def test_tensors_of_torch_stay_tensors_of_torch(near, far):
    made = [
        torch.arange(COUNT, dtype=torch.float32).reshape(64, -1),
        torch.arange(COUNT).to(torch.bfloat16),
        torch.arange(COUNT).reshape(512, -1).t(),
        torch.arange(4.0).expand(COUNT, 4),
    ]
    for tensor in made:
        for found in ray.get([same.remote(tensor), same.options(resources={"other": 1}).remote(tensor)]):
            assert type(found) is torch.Tensor and found.dtype == tensor.dtype and torch.equal(found, tensor)
    del found
    nothing_is_kept()
    handle = ray.put(made[0])
    assert sum(counts("kept")) == 1
    found = ray.get(handle)
    found += 1
    assert torch.equal(ray.get(handle), made[0]), "writes stay private"
    del handle, found
    nothing_is_kept()
    named = torch.ones(COUNT)
    named.name_of_program = "weights"
    assert ray.get(ray.put(named)).name_of_program == "weights"
    complex_ = torch.arange(COUNT).to(torch.complex64).mul_(1j)
    for tensor in [torch.nn.Parameter(made[0]), made[0].clone().requires_grad_(), made[0].to_sparse(), complex_.conj()]:
        found = ray.get(same.remote(tensor))
        assert type(found) is type(tensor) and found.requires_grad == tensor.requires_grad and found.layout == tensor.layout
        assert torch.equal(found.detach().to_dense(), tensor.detach().to_dense())
    del found
    nothing_is_kept()


def test_an_agent_that_was_killed_is_started_again(near, far):
    node = ray.get_runtime_context().get_node_id()
    opened = ray.get(ray.put(np.ones(COUNT, "f4")))
    for no_restart in (False, True):
        lost = ray.put(np.full(COUNT, 2.0, "f4"))
        assert ray.get(far.hold.remote({"x": ray.get(lost)})) == 2.0 * COUNT
        ray.kill(running_agent(node), no_restart=no_restart)
        until("it has ended", lambda: not any(counts("kept")))
        # Tokens of the former agent are not used any more.
        made = ray.put(np.full(COUNT, 3.0, "f4"))
        assert ray.get([one.total.remote(made) for one in (near, far)]) == [3.0 * COUNT] * 2
        with pytest.raises(Exception, match=f"{node}: the tensor was freed"):
            ray.get(lost)
        with pytest.raises(Exception, match=f"{node}: the tensor was freed"):
            ray.get(far.total.remote(lost))
        assert opened.sum() == COUNT
        del lost, made
        nothing_is_kept()
    ray.get(far.drop.remote())


def test_a_daemon_that_was_killed_with_its_supervisor_is_started_again(near, far):
    made = ray.put(np.ones(COUNT, "f4"))
    opened, socket = ray.get(made), str(cotensor.ray.store().socket)
    before = daemon(socket)
    node = ray.get_runtime_context().get_node_id()
    agent = agent_pid(node)
    # A put waits 1 s for a daemon. The agent, which looks every 5 s, must not start one in this second.
    stop_process(agent)
    try:
        for process in before:
            os.kill(process, signal.SIGKILL)
        with pytest.warns(ResourceWarning, match="inside of its object"):
            assert ray.get(far.total.remote(np.ones(COUNT, "f4"))) == COUNT
    finally:
        os.kill(agent, signal.SIGCONT)
    until("the agent has started another one", lambda: daemon(socket) - before)

    def travels():
        # The reference, without which the agent releases the tensor.
        sent = ray.put(opened)
        return any(counts("kept")) and sent is not None

    until("arrays travel as handles again", travels)
    assert ray.get(far.total.remote(opened)) == COUNT
    del made
    nothing_is_kept()


def test_a_name_has_other_contents_after_a_daemon_was_killed(near, far):
    """Handles and copies of the former contents are never taken for those of the next daemon."""
    store, socket = cotensor.ray.store(), str(cotensor.ray.store().socket)
    with store.put("same", np.full(COUNT, 1.0, "f4")) as tensor:
        handle = ray.put(tensor)
    assert ray.get(far.named.remote("same")) == COUNT
    before = daemon(socket)
    for process in before:
        os.kill(process, signal.SIGKILL)
    until("the agent has started another one", lambda: daemon(socket) - before)

    def publish():
        try:
            store.put("same", np.full(COUNT, 2.0, "f4"))
        except cotensor.NoDaemonError:
            return False
        return True

    until("the store has connected again", publish)
    with pytest.raises(Exception, match="same of node .*the tensor was freed|same: the tensor was freed"):
        ray.get(near.total.remote(handle))
    with pytest.raises(Exception, match="same of node"):
        ray.get(far.total.remote(handle))
    assert ray.get(near.named.remote("same")) == 2.0 * COUNT
    until("the copy is the one of the next daemon", lambda: ray.get(far.named.remote("same")) == 2.0 * COUNT)
    store.remove("same")
    ray.get(far.remove.remote("same"))
    del handle
    nothing_is_kept()


def test_nodes_without_room_get_and_send_values(cluster):
    small = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"small": 1}, memory=10 << 20)
    worker = Worker.options(resources={"small": 0.1}).remote()
    assert ray.get(worker.total.remote(np.ones(4 * COUNT, "f4"))) == 4.0 * COUNT
    assert ray.get(worker.total.remote(torch.ones(8 * COUNT).bfloat16().float())) == 8.0 * COUNT
    tensor = cotensor.ray.store().put("large", np.arange(4 * COUNT, dtype="f4"))
    expected = float(np.arange(4 * COUNT, dtype="f4")[10:].sum())
    assert ray.get(worker.total.remote(tensor[10:])) == expected
    assert ray.get(worker.kind.remote(tensor)) == "Tensor"
    made = worker.make.remote(2.0, 4 * COUNT)
    assert ray.get(made)["x"].sum() == 8.0 * COUNT
    del tensor
    cotensor.ray.store().remove("large")
    nothing_is_kept()
    ray.kill(worker)
    cluster.remove_node(small)


@ray.remote(num_cpus=0.1)
def same(value):
    return value


def test_copies_of_a_node_that_was_killed_serve_others_until_memory_is_needed(cluster, near, far):
    late = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"late": 1})
    producer = Worker.options(resources={"late": 0.1}).remote()
    node = ray.get(producer.node.remote())
    made, never = producer.make.remote(7.0), producer.make.remote(8.0)
    # The array is dropped; the node's agent has the copy.
    assert ray.get(far.total.remote(made)) == 7.0 * COUNT
    ray.wait([never])
    cluster.remove_node(late, allow_graceful=False)
    until("the node has ended", lambda: node not in [one["NodeID"] for one in ray.nodes() if one["Alive"]])
    until("the copy has no lease", lambda: not any(counts("copies")))
    with pytest.raises(Exception, match=f"of node {node}"):
        ray.get(near.total.remote(never))
    assert ray.get([one.total.remote(made) for one in (near, far, near)]) == [7.0 * COUNT] * 3
    del made, never
    until("the copies have no lease", lambda: not any(counts("copies")))
    for one in cotensor.ray.status().values():
        with cotensor.Store.connect(one["socket"], autostart=False) as store:
            assert len(store.names(COPY_PREFIX)) == 1
            store.optimize_memory_usage()
            until("all memory is free", lambda: store.get_stats()["total_tensors"] == 0)


def test_node_that_comes_later_is_served_and_its_daemon_ends_with_it(cluster, near):
    late = cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={"late": 1})
    worker = Worker.options(resources={"late": 0.1}).remote()
    assert ray.get(worker.total.remote(near.make.remote(6.0))) == 6.0 * COUNT
    made, opened = worker.make.remote(7.0), worker.make.remote(8.0)
    ray.wait([made])
    array = ray.get(opened)["x"]
    assert sum(counts("copies")) == 1
    node = ray.get(worker.node.remote())
    socket = socket_of(node)
    assert socket.exists()
    cluster.remove_node(late)
    until("the daemon has ended", lambda: not socket.exists())
    start = time.monotonic()
    with pytest.raises(Exception, match=node[:8]):
        ray.get(near.total.remote({"x": ray.get(made)["x"]}))
    assert time.monotonic() - start < 20
    assert array[0] == 8.0
    until("its copies are released", lambda: not any(counts("copies")))
    assert array[-1] == 8.0
