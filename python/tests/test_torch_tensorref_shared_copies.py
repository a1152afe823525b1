"""Programs that offload one published model to one device hold each resident weight once: processes of their own, one that
writes, one that is killed, and a device without room."""

from __future__ import annotations

import gc
import json
import os
import subprocess
from contextlib import contextmanager

import pytest
from conftest import command, serving
from functions_common import providing, until
from tensorref_programs_common import programs

torch = pytest.importorskip("torch")

import cotensor.torch  # noqa: E402
from cotensor.client import SharedTensorClient  # noqa: E402
from cotensor.errors import UnsupportedError  # noqa: E402
from cotensor.tensorref import offload, simulated_device  # noqa: E402

LAYERS, WIDTH = 8, 128
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 4
WEIGHTS_BYTES = LAYERS * LAYER_BYTES
DEVICE_BYTES = 4 << 20


@contextmanager
def published(limit_bytes):
    """A daemon with memory on the simulated device that has the model, a store, and a function that starts a program."""
    with serving("--max-device-memory", f"fake:0={limit_bytes}B") as daemon, daemon.connect() as store:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        cotensor.torch.publish(model, "net", store, attach=False)
        with programs("tensorref_shared_program.py") as started:

            def start(memory=DEVICE_BYTES, **options):
                return started(daemon.socket, LAYERS, WIDTH, json.dumps({"memory": memory}), json.dumps(options))

            yield daemon, store, start


def on_device(store):
    """The number of the store's tensors on the device, and their bytes."""
    found = next(device for device in store.get_stats()["devices"] if device["device"] == "fake:0")
    return found["tensors"], found["memory_usage_bytes"]


@pytest.mark.parametrize("strategy", ["lru", "flow"])
def test_programs_hold_each_resident_weight_once(strategy):
    with published(1 << 20) as (daemon, store, start):
        first = start(strategy=strategy)
        state = first.ask("run 3")
        assert state["shared_bytes"] == state["used_bytes"] == state["copied_bytes"] == WEIGHTS_BYTES
        assert on_device(store) == (2 * LAYERS, WEIGHTS_BYTES)
        second = start(strategy=strategy)
        state = second.ask("run 3")
        assert (state["shared_bytes"], state["copies"], state["copied_bytes"]) == (WEIGHTS_BYTES, 0, 0)
        assert state["copied_in"] < LAYER_BYTES, "only the inputs are copied"
        assert state["allocated"] < LAYER_BYTES, "no weight is in the memory of the program"
        assert on_device(store) == (2 * LAYERS, WEIGHTS_BYTES)
        # The broker divides what is not the store's.
        stat = [*command(), "stat", "--json", "--socket", str(daemon.socket)]
        (device,) = json.loads(subprocess.run(stat, capture_output=True, check=True).stdout)["devices"]
        assert (device["device"], device["capacity_bytes"]) == ("simulated:shared", DEVICE_BYTES - (1 << 20))
        assert len(device["programs"]) == 2
        first.kill()
        assert second.ask("run 3")["copied_bytes"] == 0
        assert on_device(store) == (2 * LAYERS, WEIGHTS_BYTES)
        assert second.end()["shared_bytes"] == 0
        until(lambda: on_device(store) == (0, 0), "the memory is free")


def test_a_program_that_writes_a_weight_changes_no_other_program():
    with published(1 << 20) as (_, store, start):
        writer, reader = start(strategy="lru"), start(strategy="lru")
        writer.ask("run 1")
        reader.ask("run 1")
        state = writer.ask("write")
        assert state["shared_bytes"] < state["used_bytes"] == WEIGHTS_BYTES
        assert reader.ask("run 2")["shared_bytes"] == WEIGHTS_BYTES
        reader.end()
        until(lambda: on_device(store)[1] == state["shared_bytes"], "the written weight leaves")
        # A later program gets the published values.
        later = start(strategy="lru")
        assert later.ask("run 1")["copied_bytes"] == WEIGHTS_BYTES - state["shared_bytes"]
        assert writer.ask("run 1")["shared_bytes"] == state["shared_bytes"]


def test_a_program_killed_after_a_copy_leaves_no_memory():
    with published(1 << 20) as (_, store, start):
        first, second = start(strategy="lru"), start(strategy="lru")
        assert first.ask("copy")["copying"].endswith("0.weight")
        assert on_device(store)[0] == 1
        assert second.ask("run 2")["shared_bytes"] == WEIGHTS_BYTES
        first.kill()
        assert second.ask("run 2")["copied_bytes"] == WEIGHTS_BYTES - WIDTH * WIDTH * 4
        second.kill()
        until(lambda: on_device(store) == (0, 0), "the memory is free")


def test_programs_share_what_the_store_has_room_for():
    room = 3 * LAYER_BYTES
    with published(room) as (_, store, start):
        # The store and the part of a program hold six of eight layers.
        own = LAYERS * LAYER_BYTES
        programs = [start(room + own, strategy=strategy) for strategy in ("lru", "flow")]
        for _ in range(3):
            for program in programs:
                state = program.ask("run 3")
                assert 0 < state["shared_bytes"] <= room
                assert state["allocated"] <= own
                assert state["evictions"] > 0
                assert 0 < on_device(store)[1] <= room
        for program in programs:
            program.end()
        until(lambda: on_device(store) == (0, 0), "the memory is free")


WEIGHTS = """
import torch

@provider.share(name="weights")
def weights(value):
    return {"weight": torch.full((64, 64), float(value)), "bias": torch.zeros(64)}
"""


@pytest.fixture
def here(monkeypatch, frozen):
    """A store with memory on this process's simulated device."""
    gc.collect()
    with serving("--max-device-memory", "fake:0=1MiB") as daemon:
        monkeypatch.setenv("COTENSOR_SOCKET", str(daemon.socket))
        simulated_device(name="here")
        try:
            with daemon.connect() as store:
                yield store
        finally:
            simulated_device()


def leased(session, model):
    """The names of parameters and buffers whose copies are shared."""
    (mover,) = session.movers
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name for name, tensor in named if mover.weights.part(tensor).weight.is_leased}


WRITES = {
    "option": lambda weight: torch.nn.functional.relu(weight, inplace=True),
    "option by position": lambda weight: torch.nn.functional.hardtanh(weight, -1.0, 1.0, True),
    "norm": lambda weight: torch.nn.functional.embedding(torch.tensor([1, 2]), weight, max_norm=0.1),
    "list on both sides": lambda weight: torch._foreach_add_([weight, torch.ones(2, device=weight.device)], 1),
}


@pytest.mark.parametrize("name", WRITES)
def test_operations_that_write_a_weight_get_a_copy_of_their_own(here, name):
    model, written = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    cotensor.torch.publish(model, "net", here)
    written.load_state_dict(model.state_dict())
    x = torch.linspace(-1, 1, 16).reshape(1, 16)
    with torch.no_grad():
        expected = model(x)
        with offload(model, "simulated", strategy="lru") as session:
            assert torch.equal(model(x).cpu(), expected)
            assert leased(session, model) == {"weight", "bias"}
            # An operation that only reads a weight, and one that writes another.
            (x @ model.weight).to("simulated").add_(model.bias)
            assert leased(session, model) == {"weight", "bias"}
            WRITES[name](model.weight)
            assert leased(session, model) == {"bias"}
            found = model(x).cpu()
        WRITES[name](written.weight)
        assert torch.equal(found, written(x))


def normalizing():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64))


@pytest.mark.parametrize("strategy", ["genoa", "flow", "lru", "pinned"])
def test_operations_that_write_statistics_get_copies_of_their_own(here, strategy):
    x = torch.linspace(-1, 1, 192).reshape(3, 64)
    plain, model, other = normalizing(), normalizing(), normalizing()
    cotensor.torch.publish(model, "net", here)
    cotensor.torch.attach(other, "net", here)
    with torch.no_grad():
        expected = [plain(x) for _ in range(3)]
        with offload(model, "simulated", strategy=strategy) as session, offload(other, "simulated", strategy=strategy):
            for value in expected:
                assert torch.equal(model(x).cpu(), value)
            assert 0 < session.stats()["shared_bytes"] or strategy == "genoa"
            assert leased(session, model) <= {"0.weight", "0.bias", "2.weight", "2.bias"}
            other.eval()
            shown = other(x).cpu()
    assert all(torch.equal(one, two) for one, two in zip(model.buffers(), plain.buffers()))
    with torch.no_grad():
        assert torch.equal(shown, normalizing().eval()(x)), "the other module has the published statistics"
    until(lambda: on_device(here) == (0, 0), "the memory is free")


def test_weights_of_a_known_address_and_small_memory_stay_equal(here):
    x = torch.linspace(-1, 1, 16).reshape(1, 16)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
    cotensor.torch.publish(model, "net", here)
    with torch.no_grad():
        expected = model(x)
        memory = 3000 + simulated_device(name="here").memory.allocated_bytes
        with offload(model, "simulated", strategy="lru", memory=memory) as session:
            for _ in range(3):
                assert torch.equal(model(x).cpu(), expected)
                shared = session.stats()["shared_bytes"]
                assert 0 < shared <= 3000
                until(lambda: on_device(here)[1] == shared, "the evicted copies are free")  # noqa: B023 - called at once
            assert session.stats()["evictions"] > 0
            (mover,) = session.movers
            copied = [weight for weight in mover.weights.all if weight.copy is not None]
            assert mover.private_bytes + shared == sum([weight.size_bytes for weight in copied]) == mover.driver.used
            array = model[0].weight.detach().numpy()
            array[:] = 0
            changed = model(x).cpu()
            assert not torch.equal(changed, expected)
            session.invalidate()
            until(lambda: on_device(here) == (0, 0), "the memory is free")
        assert torch.equal(changed, model(x))


def test_sharing_is_optional_and_says_why_it_is_not_possible(here):
    model = torch.nn.Linear(16, 16)
    with pytest.raises(UnsupportedError, match="published"):
        offload(model, "simulated", shared_copies=True).__enter__()
    cotensor.torch.publish(model, "net", here)
    for wanted, shared in ((False, False), (None, True), (True, True)):
        with torch.no_grad(), offload(model, "simulated", strategy="lru", shared_copies=wanted) as session:
            model(torch.ones(1, 16))
            assert (session.stats()["shared_bytes"] > 0) is shared
    simulated_device()
    with pytest.raises(UnsupportedError, match="identity"):
        offload(model, "simulated", shared_copies=True).__enter__()
    simulated_device(name="here", count=2)
    with pytest.raises(UnsupportedError, match="--max-device-memory fake:1"):
        offload(model, "simulated:1", shared_copies=True).__enter__()
    with torch.no_grad(), offload(model, "simulated:1", strategy="lru") as session:
        model(torch.ones(1, 16))
        assert session.stats()["shared_bytes"] == 0


def test_weights_in_the_memory_of_a_call_are_not_shared(here):
    """Each program numbers these tensors itself."""
    x = torch.ones(1, 64)
    socket = os.environ["COTENSOR_SOCKET"]
    with providing(socket, WEIGHTS), SharedTensorClient(socket=socket) as a, SharedTensorClient(socket=socket) as b:
        models = []
        for value, client in ((1, a), (2, b)):
            models.append(torch.nn.Linear(64, 64))
            models[-1].load_state_dict(client.call_function("weights", [value]), assign=True)
            with pytest.raises(UnsupportedError, match="no weight of the model is published"):
                offload(models[-1], "simulated", shared_copies=True).__enter__()
        # A published weight beside them turns sharing on.
        published = torch.nn.Linear(64, 64)
        cotensor.torch.publish(published, "net", here)
        one, other = (torch.nn.Sequential(published, model) for model in models)
        options = {"strategy": "lru", "shared_copies": True}
        with torch.no_grad():
            expected = one(x), other(x)
            with offload(one, "simulated", **options) as first, offload(other, "simulated", **options) as second:
                assert torch.equal(one(x).cpu(), expected[0])
                assert torch.equal(other(x).cpu(), expected[1])
                shared = [session.stats()["shared_bytes"] for session in (first, second)]
                assert max(shared) == on_device(here)[1] == (64 * 64 + 64) * 4
