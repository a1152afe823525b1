"""Copies on a stream of their own: the order of the calls, with streams and events that only record them."""

from __future__ import annotations

import contextlib
import gc

import pytest

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

    def wait_event(self, event):
        self.calls.append(("wait", self.name, event.name))


class Module:
    """The part of ``torch.cuda`` that copies use."""

    def __init__(self):
        self.calls = []
        self.compute = Stream(self.calls, "compute")
        self.inside = []

    def Stream(self, device):
        return Stream(self.calls, "copy")

    @contextlib.contextmanager
    def stream(self, stream):
        self.inside.append(stream)
        yield
        self.inside.pop()

    def current_stream(self, device):
        return self.inside[-1] if self.inside else self.compute


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
        landed = [weight.landing for weight in session.weights.all if weight.copy is not None]
        assert all(landing is not None for landing in landed)
        copied = session.stats()["copies"]
    # All copies but those that were made ahead and not used yet.
    assert copied - len(landed) <= waits <= copied and waits > 0
    assert module.calls.count(("used by", "compute")) == waits
