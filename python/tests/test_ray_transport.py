"""Ray's direct transport by the name COTENSOR, and the interface of Ray 2.60 on which it relies."""

import inspect
import os
import signal
import time

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from ray._private.worker import Worker as RayWorker  # noqa: E402
from ray.experimental import rdt  # noqa: E402
from test_ray_cluster import COUNT, cluster, counts, nothing_is_kept, until  # noqa: E402, F401

from cotensor import UnsupportedError  # noqa: E402
from cotensor.ray import transport  # noqa: E402
from cotensor.ray.serialization import TRANSPORT  # noqa: E402
from cotensor.ray.setup import offer_transport  # noqa: E402

pytestmark = pytest.mark.timeout(180)


@ray.remote(num_cpus=0.1, enable_tensor_transport=True, max_restarts=1)
class Decorated:
    def pid(self):
        return os.getpid()

    @ray.method(tensor_transport=TRANSPORT)
    def make(self, value, seconds=0):
        time.sleep(seconds)
        return {"x": np.full(COUNT, value, "f4"), "t": torch.full((COUNT,), value), "small": [torch.ones(2)]}

    @ray.method(tensor_transport=TRANSPORT)
    def on_meta(self):
        return torch.empty(COUNT, device="meta")

    def total(self, value):
        return float(value["x"].sum() + value["t"].sum())

    def outside(self):
        """The objects whose tensors Ray keeps beside them."""
        return ray._private.worker.global_worker.rdt_manager.rdt_store.get_num_objects()


@ray.remote(num_cpus=0.1)
class Undecorated:
    def make(self, value):
        return {"x": np.full(COUNT, value, "f4"), "t": torch.full((COUNT,), value)}

    def total(self, value):
        return float(value["x"].sum() + value["t"].sum())

    def total_inside(self, values):
        return float(sum(ray.get(values[0])[name].sum() for name in "xt"))


@ray.remote(num_cpus=0.1)
def total(value):
    return float(value["x"].sum() + value["t"].sum())


@ray.remote(num_cpus=0.1)
def total_inside(values):
    return float(sum(ray.get(values[0])[name].sum() for name in "xt"))


@pytest.fixture
def actors(cluster):  # noqa: F811
    started = []

    def start(kind, **options):
        started.append(kind.options(**options).remote())
        return started[-1]

    yield start
    for actor in started:
        ray.kill(actor)


def test_arrays_and_tensors_travel_as_handles_between_decorated_actors(actors):
    producer, near, far = actors(Decorated), actors(Decorated), actors(Decorated, resources={"other": 1})
    made = producer.make.remote(2.0)
    pulled = sum(counts("pulled"))
    assert ray.get([one.total.remote(made) for one in (near, far, producer)], timeout=50) == [4.0 * COUNT] * 3
    assert sum(counts("kept")) == 2 and sum(counts("pulled")) - pulled == 2
    value = ray.get(made)
    assert not value["x"].flags.writeable and type(value["t"]) is torch.Tensor
    put = ray.put({"x": np.ones(COUNT, "f4"), "t": torch.ones(COUNT)}, _tensor_transport=TRANSPORT)
    assert ray.get(far.total.remote(put), timeout=50) == 2.0 * COUNT
    del made, put, value
    nothing_is_kept()
    all_three = (producer, near, far)
    until("Ray keeps nothing beside the objects", lambda: not any(ray.get([one.outside.remote() for one in all_three])))
    manager = ray._private.worker.global_worker.rdt_manager
    assert not manager._managed_rdt_metadata and not manager._pending_tensor_transport_meta


def test_consumers_need_no_decoration(actors):
    producer, plain = actors(Decorated), actors(Undecorated)
    made = producer.make.remote(2.0)
    ray.wait([made])
    for is_made in (True, False):
        for use, is_inside in ((plain.total, False), (total, False), (plain.total_inside, True), (total_inside, True)):
            later = made if is_made else producer.make.remote(2.0, seconds=0.2)
            assert ray.get(use.remote([later] if is_inside else later), timeout=50) == 4.0 * COUNT
    del made, later
    nothing_is_kept()


def test_producers_without_decoration_are_refused_at_once(actors):
    # Ray does not look at the second one's option.
    for plain in (actors(Undecorated), actors(Undecorated, enable_tensor_transport=True)):
        with pytest.raises(ValueError, match="enable_tensor_transport=True. on the actor class definition"):
            plain.make.options(tensor_transport=TRANSPORT).remote(1.0)


def test_tensors_outlive_a_killed_producer_and_it_starts_again_with_the_transport(actors):
    producer, far = actors(Decorated), actors(Undecorated, resources={"other": 1})
    made, pid = producer.make.remote(3.0), ray.get(producer.pid.remote())
    ray.wait([made])
    os.kill(pid, signal.SIGKILL)
    assert ray.get(far.total.remote(made), timeout=50) == 6.0 * COUNT
    del made
    nothing_is_kept()

    def is_back():
        try:
            return ray.get(producer.pid.remote()) != pid
        except ray.exceptions.ActorUnavailableError:
            return False

    until("it has started again", is_back)
    again = producer.make.remote(4.0)
    assert ray.get(far.total.remote(again), timeout=50) == 8.0 * COUNT
    del again
    nothing_is_kept()


def test_other_devices_and_targets_are_refused_at_once(actors):
    producer = actors(Decorated)
    with pytest.raises(NotImplementedError, match="this one is on meta: return tensor.cpu()"):
        ray.get(producer.on_meta.remote(), timeout=50)
    with pytest.raises(UnsupportedError, match="this one is on meta"):
        ray.put(torch.empty(COUNT, device="meta"), _tensor_transport=TRANSPORT)
    for set_target in (
        lambda made: rdt.set_target_for_ref(made, [torch.ones(COUNT)]),
        lambda made: rdt.set_target_device_for_ref(made, "cpu"),
    ):
        made = producer.make.remote(1.0)
        set_target(made)
        with pytest.raises(UnsupportedError, match="set_target_for_ref"):
            ray.get(made, timeout=50)


def test_interface_of_ray_is_the_one_that_is_used():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    assert parameters(rdt.register_tensor_transport) == ["transport_name", "devices", "transport_manager_class", "data_type"]
    base = rdt.TensorTransportManager
    assert base.__abstractmethods__ == {
        "abort_transport",
        "actor_has_tensor_transport",
        "can_abort_transport",
        "extract_tensor_transport_metadata",
        "garbage_collect",
        "get_communicator_metadata",
        "is_one_sided",
        "recv_multiple_tensors",
        "send_multiple_tensors",
        "tensor_transport_backend",
    }
    for name in base.__abstractmethods__:
        assert parameters(getattr(transport.Transport, name)) == parameters(getattr(base, name)), name
    assert parameters(rdt.TensorTransportMetadata) == ["tensor_meta", "tensor_device"]
    assert rdt.util.transport_manager_info[TRANSPORT].transport_manager_class is transport.Transport
    # The functions that know this transport, and what they call.
    assert parameters(rdt.RDTManager.is_managed_object) == parameters(rdt.RDTManager.get_rdt_metadata) == ["self", "obj_id"]
    assert parameters(RayWorker._get_rdt_ids) == ["serialized_objects", "object_refs"]
    fields = {"src_actor", "tensor_transport_backend", "tensor_transport_meta", "target_buffers", "target_device"}
    assert fields <= set(rdt.rdt_manager.RDTMeta._fields)
    assert "tensor_transport" in parameters(ray._private.serialization.SerializationContext.serialize_rdt_objects)


def test_a_ray_with_another_interface_is_used_without_the_transport(monkeypatch):
    monkeypatch.delitem(rdt.util.transport_manager_info, TRANSPORT)
    with monkeypatch.context() as other:
        other.setattr(rdt, "register_tensor_transport", lambda name, devices: None)
        with pytest.warns(RuntimeWarning, match="'COTENSOR' is not offered: Ray .*: TypeError: .* arguments"):
            offer_transport()
    monkeypatch.delattr(rdt, "register_tensor_transport")
    with pytest.warns(RuntimeWarning, match="'COTENSOR' is not offered: Ray .*register_tensor_transport"):
        offer_transport()
