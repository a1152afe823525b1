"""Copies on a stream of their own: the order of the calls, with streams and events that only record them."""

from __future__ import annotations

import contextlib
import gc

import pytest
from memory_common import permissions_at

torch = pytest.importorskip("torch")

from cotensor.tensorref import copies, offload, simulated_device  # noqa: E402


class Event:
    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def synchronize(self):
        self.calls.append(("synchronize", self.name))


class Stream:
    def __init__(self, calls, name):
        self.calls, self.name, self.events = calls, name, 0

    def record_event(self):
        self.events += 1
        name = f"{self.name}{self.events}"
        self.calls.append(("record", name))
        return Event(self.calls, name)

    def synchronize(self):
        self.calls.append(("synchronize", self.name))

    def wait_event(self, event):
        self.calls.append(("wait", self.name, event.name))


class Runtime:
    """The part of CUDA's runtime that locks pages. ``locked`` has the sizes by address."""

    def __init__(self, answer=0):
        self.answer, self.locked, self.flags = answer, {}, set()

    def cudaHostRegister(self, start, size, flags):
        assert start not in self.locked
        self.flags.add(flags)
        if not self.answer:
            self.locked[start] = size
        return self.answer

    def cudaHostUnregister(self, start):
        del self.locked[start]
        return 0


class Module:
    """The part of ``torch.cuda`` that copies use."""

    def __init__(self):
        self.calls = []
        self.compute = Stream(self.calls, "compute")
        self.inside = []
        self.runtime = Runtime()

    def Stream(self, device):
        return Stream(self.calls, "copy")

    @contextlib.contextmanager
    def stream(self, stream):
        self.inside.append(stream)
        yield
        self.inside.pop()

    def current_stream(self, device):
        return self.inside[-1] if self.inside else self.compute

    def cudart(self):
        return self.runtime


class Recorded(copies.StreamCopies):
    def record(self, copy, stream):
        self.module.calls.append(("used by", stream.name))

    def allocate(self):
        return torch.empty(copies._STAGED_BYTES, dtype=torch.uint8)


def test_an_operation_waits_for_its_copy_and_memory_for_the_operation():
    module = Module()
    paths = Recorded(torch.device("cpu"), module)
    source = torch.arange(8.0)
    copy, landing = paths.fetch(source, torch.device("cpu"))
    source.zero_()
    assert copy.tolist() == list(range(8)) and module.calls == [("record", "copy1"), ("record", "copy2")]
    module.calls.clear()
    for _ in range(2):
        paths.use(copy, landing)
    # Once for each stream.
    assert module.calls == [("wait", "compute", "copy2"), ("used by", "compute")]
    with module.stream(Stream(module.calls, "other")):
        paths.use(copy, landing)
    assert module.calls[2:] == [("wait", "other", "copy2"), ("used by", "other")]


def test_a_buffer_is_written_after_its_last_copy(monkeypatch):
    monkeypatch.setattr(copies, "_STAGED_BYTES", 16)
    module = Module()
    paths = Recorded(torch.device("cpu"), module)
    source = torch.arange(18.0)
    copy, _ = paths.fetch(source, torch.device("cpu"))
    assert torch.equal(copy, source)
    copied = [("record", f"copy{number}") for number in range(1, 7)]
    waited = [("synchronize", f"copy{number}") for number in range(1, 4)]
    assert module.calls == [*copied[:2], waited[0], copied[2], waited[1], copied[3], waited[2], *copied[4:]]


@pytest.mark.parametrize("strategy", ["genoa", "flow", "lru"])
def test_each_operation_waits_for_its_weights(strategy):
    gc.collect()
    memory = simulated_device().memory
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(6)])
    x = torch.ones(2, 16)
    expected = model(x)
    session = offload(model, "simulated", strategy=strategy, memory=memory.allocated_bytes + 6000)
    module = Module()
    session.movers[0].paths = Recorded(torch.device("simulated"), module)
    waits = 0
    with session:
        for _ in range(4):
            torch.testing.assert_close(model(x).detach().cpu(), expected, rtol=1e-6, atol=1e-6)
        model(x).sum().backward()
        waits = sum(call[0] == "wait" for call in module.calls)
        landed = [weight.landing for weight in session.movers[0].weights.all if weight.copy is not None]
        assert all(landing is not None for landing in landed)
        copied = session.stats()["copies"]
    # All copies but those that were made ahead and not used yet.
    assert copied - len(landed) <= waits <= copied and waits > 0
    assert module.calls.count(("used by", "compute")) == waits


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])


@pytest.fixture
def attached(daemon):
    """Two models whose weights are those of the store, and an equal one."""
    import cotensor.torch

    with daemon.connect() as store:
        cotensor.torch.publish(net(), "net", store=store)
        with cotensor.torch.on_meta():
            models = net(), net()
        for model in models:
            cotensor.torch.attach(model, "net", store=store)
        yield *models, net()


def outside(model, x):
    """The output of a model that no session manages."""
    with torch._C.DisableTorchFunction():
        return model(x)


def sessions_of(models, module):
    sessions = [offload(model, "simulated", strategy="genoa") for model in models]
    for session in sessions:
        session.movers[0].paths = Recorded(torch.device("simulated"), module)
    return sessions


def test_weights_of_the_store_are_copied_from_locked_pages(attached):
    simulated_device()
    (model, other, plain), module = attached, Module()
    first, second = sessions_of([model, other], module)
    x = torch.ones(2, 64)
    size = sum(parameter.nbytes for parameter in model.parameters())
    with torch.no_grad(), first:
        assert torch.equal(model(x).cpu(), outside(plain, x))
        stats = first.stats()
        assert stats["staged_bytes"] == 0 and size <= stats["locked_bytes"] <= 1.1 * size
        # The driver locks the pages once for the process, read-only and for all devices.
        locked = dict(module.runtime.locked)
        assert sum(locked.values()) == stats["locked_bytes"] and module.runtime.flags == {9}
        # Of a private mapping, the driver would lock copies.
        assert {permissions_at(start) for start in locked} == {"r--s"}
        assert not any(parameter.data_ptr() in locked for parameter in model.parameters())
        with second:
            assert torch.equal(other(x).cpu(), outside(plain, x))
            assert second.stats()["locked_bytes"] == stats["locked_bytes"]
        assert module.runtime.locked == locked
        # A weight that was written has pages of its own.
        for one in (model, plain):
            one[1].weight.mul_(2)
            one[2].weight.data[0] = 1
        assert torch.equal(model(x).cpu(), outside(plain, x))
        assert first.stats()["staged_bytes"] >= model[1].weight.nbytes + model[2].weight.nbytes
        given = model[3].bias.numpy()
        given[:] = 3
        plain[3].bias.fill_(3)
        assert torch.equal(model(x).cpu(), outside(plain, x))
    assert module.runtime.locked == {} and ("synchronize", "copy") in module.calls
    assert first.stats()["locked_bytes"] == 0
    # A session that is entered again locks them again.
    with torch.no_grad(), second:
        assert torch.equal(other(x).cpu(), outside(net(), x)) and second.stats()["locked_bytes"] > 0


def test_weights_are_staged_where_the_driver_locks_no_pages(attached):
    simulated_device()
    (model, _, plain), module = attached, Module()
    module.runtime = Runtime(answer=801)
    (session,) = sessions_of([model], module)
    x = torch.ones(2, 64)
    with torch.no_grad(), session:
        for _ in range(3):
            assert torch.equal(model(x).cpu(), outside(plain, x))
        stats = session.stats()
    assert stats["locked_bytes"] == 0 and stats["staged_bytes"] == stats["copied_bytes"] > 0
