"""Modules that follow their name: failing, overlapping, nested and forked forward passes."""

from __future__ import annotations

import gc
import os
import select
import threading
import weakref
from typing import Any, Callable, Tuple

import pytest
from conftest import local_store
from functions_common import TIMEOUT_S, until

torch = pytest.importorskip("torch")

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402


class TwoWeights(torch.nn.Module):
    """Returns its two weights, which are equal in every version. Calls `between` after it reads the first."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.full((), float(value)))
        self.other = torch.nn.Parameter(torch.full((), float(value)))

    def forward(self, between: Callable[[], Any] = lambda: None) -> Tuple[float, float]:
        one = float(self.one)
        between()
        return one, float(self.other)


class Pass:
    """A forward pass in another thread, which stops between the two weights until `finish`."""

    def __init__(self, module: TwoWeights) -> None:
        self._inside, self._go_on = threading.Event(), threading.Event()
        self._weights: Tuple[float, float] = (0.0, 0.0)
        self._thread = threading.Thread(target=self._run, args=(module,))
        self._thread.start()

    def _run(self, module: TwoWeights) -> None:
        self._weights = module(lambda: (self._inside.set(), self._go_on.wait(TIMEOUT_S)))

    def wait_until_inside(self) -> None:
        assert self._inside.wait(TIMEOUT_S)

    def finish(self) -> Tuple[float, float]:
        """Ends the pass, and returns the weights that it read."""
        self._go_on.set()
        self._thread.join()
        return self._weights


store = local_store()


def gate_of(module: TwoWeights) -> Any:
    return ct.weights.models._states[module].gate


def follower(store: cotensor.Store) -> TwoWeights:
    ct.publish(TwoWeights(1), "weighed", store)
    module = TwoWeights()
    ct.attach(module, "weighed", store, follow=True)
    return module


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failed_pass_ends(store: cotensor.Store, error: type) -> None:
    module = follower(store)

    def fail() -> None:
        raise error

    kept = []
    for value in (2.0, 3.0):
        with pytest.raises(error) as raised:
            module(fail)
        # Keeps the traceback with the frames of the pass, as a notebook does.
        kept.append(raised)
        ct.publish(TwoWeights(value), "weighed", store)
        assert module() == (value, value)
    with pytest.raises(error):
        module(fail)
    ct.publish(TwoWeights(4), "weighed", store)
    assert ct.refresh(module) and module() == (4, 4)


@pytest.mark.parametrize("nested", [False, True])
def test_interrupted_pass_of_another_thread_ends(store: cotensor.Store, nested: bool) -> None:
    module = follower(store)
    interrupted, go_on, kept = threading.Event(), threading.Event(), []

    def fail() -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with pytest.raises(KeyboardInterrupt) as raised:
            module(fail)
        # Keeps the traceback with the frames of the pass.
        kept.append(raised)
        interrupted.set()
        go_on.wait(TIMEOUT_S)

    thread = threading.Thread(target=(lambda: module(run)) if nested else run)
    thread.start()
    assert interrupted.wait(TIMEOUT_S)
    # Inside another pass, only the interrupted one has ended.
    assert gate_of(module)._is_busy() is nested
    ct.publish(TwoWeights(2), "weighed", store)
    if not nested:
        assert ct.refresh(module) and module() == (2, 2)
    go_on.set()
    thread.join()
    assert module() == (2, 2) and len(kept) == 1


def test_overlapping_passes_switch_to_a_newer_version(store: cotensor.Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("cotensor.torch.weights.follow.PASS_TIMEOUT", TIMEOUT_S)
    module = follower(store)
    for value in (2.0, 3.0, 4.0):
        before = [Pass(module), Pass(module)]
        for each in before:
            each.wait_until_inside()
        ct.publish(TwoWeights(value), "weighed", store)
        # New passes wait for the running ones, which could otherwise overlap without an end and prevent the switch.
        after = [Pass(module), Pass(module)]
        until(lambda: len(gate_of(module)._changed._waiters) == 2)
        assert [each.finish() for each in before] == [(value - 1, value - 1)] * 2
        for each in after:
            each.wait_until_inside()
        assert [each.finish() for each in after] == [(value, value)] * 2


def test_refresh_takes_precedence_over_new_passes(store: cotensor.Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("cotensor.torch.weights.follow.PASS_TIMEOUT", TIMEOUT_S)
    module, refreshed = follower(store), []
    running = Pass(module)
    running.wait_until_inside()
    refreshing = threading.Thread(target=lambda: refreshed.append(ct.refresh(module)))
    refreshing.start()
    until(lambda: gate_of(module)._wanted == 1)
    later = Pass(module)
    until(lambda: later._inside.is_set() or len(gate_of(module)._changed._waiters) == 2)
    assert not later._inside.is_set(), "a new pass waits for the refresh"
    assert running.finish() == (1, 1)
    refreshing.join()
    assert refreshed == [False] and later.finish() == (1, 1)


def test_passes_with_generators_use_one_version(store: cotensor.Store) -> None:
    module = follower(store)
    done, mixed = threading.Event(), []

    def run() -> None:
        while not done.is_set():
            one, other = module(lambda: sum(value for value in range(300)))
            if one != other:
                mixed.append((one, other))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for value in range(2, 60):
        ct.publish(TwoWeights(value), "weighed", store)
    done.set()
    for thread in threads:
        thread.join()
    assert not mixed


def test_version_that_does_not_fit_does_not_block_passes(store: cotensor.Store) -> None:
    module = follower(store)
    ct.publish(torch.nn.Linear(2, 2), "weighed", store)
    assert module() == (1, 1)
    running = Pass(module)
    running.wait_until_inside()
    assert not gate_of(module)._must_wait(module)
    assert module() == (1, 1)
    running.finish()


def test_module_is_freed_after_an_interrupted_pass(store: cotensor.Store) -> None:
    module = follower(store)

    def fail() -> None:
        raise KeyboardInterrupt

    try:
        module(fail)
    except KeyboardInterrupt:
        pass
    known = weakref.ref(module)
    del module
    gc.collect()
    assert known() is None


def test_version_with_an_unreadable_note_is_not_used(store: cotensor.Store) -> None:
    module = follower(store)
    note = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    raw = bytearray(store.get("weighed").tobytes())
    at = raw.index(b'"source":{}') + len(b'"source":')
    text = bytes(raw[24:at]) + note + b"}"
    header = raw[:16] + len(text).to_bytes(8, "little") + text
    header += bytes(-len(header) % 64)
    data = raw[-(len(raw) % 64 or 64) - 64 :]
    store.put("weighed", torch.frombuffer(bytearray(header + data + bytes(256)), dtype=torch.uint8))
    assert module() == (1, 1)
    with pytest.raises(cotensor.CorruptError, match="source"):
        ct.refresh(module)


def test_nested_pass_does_not_wait(store: cotensor.Store) -> None:
    module = follower(store)
    inner = []

    def publish_and_pass() -> None:
        ct.publish(TwoWeights(2), "weighed", store)
        inner.append(module())
        with pytest.raises(cotensor.ConflictError):
            ct.refresh(module)

    assert module(publish_and_pass) == (1, 1) and inner == [(1, 1)]
    assert module() == (2, 2)


def test_child_forked_during_a_pass_follows(daemon: Any) -> None:
    with daemon.connect() as store:
        module = follower(store)
        running = Pass(module)
        running.wait_until_inside()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                module()
                os._exit(0 if not ct.refresh(module) else 2)
            finally:
                os._exit(code)
        descriptor = os.pidfd_open(child)
        ended, _, _ = select.select([descriptor], [], [], TIMEOUT_S)
        os.close(descriptor)
        running.finish()
        assert ended, "the child waits for a pass of its parent"
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
