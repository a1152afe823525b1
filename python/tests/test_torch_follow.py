"""Modules that follow their name, whatever happens in their forward passes."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import Any, Callable, Tuple

import pytest
from conftest import embedded_store

torch = pytest.importorskip("torch")

import cotensor  # noqa: E402
import cotensor.torch as ct  # noqa: E402


class Weighed(torch.nn.Module):
    """Gives its two weights, which are equal in every version; something can happen between reading them."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.full((), float(value)))
        self.other = torch.nn.Parameter(torch.full((), float(value)))

    def forward(self, between: Callable[[], Any] = lambda: None) -> Tuple[float, float]:
        one = float(self.one)
        between()
        return one, float(self.other)


store = embedded_store()


def follower(store: cotensor.Store) -> Weighed:
    ct.publish(Weighed(1), "weighed", store)
    module = Weighed()
    ct.attach(module, "weighed", store, follow=True)
    return module


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_pass_that_fails_ends(store: cotensor.Store, error: type) -> None:
    module = follower(store)

    def fail() -> None:
        raise error

    kept = []
    for value in (2.0, 3.0):
        with pytest.raises(error) as raised:
            module(fail)
        # Its traceback keeps the frames of the pass, as a notebook does.
        kept.append(raised)
        ct.publish(Weighed(value), "weighed", store)
        assert module() == (value, value)
    with pytest.raises(error):
        module(fail)
    ct.publish(Weighed(4), "weighed", store)
    assert ct.refresh(module) and module() == (4, 4)


def test_passes_that_overlap_switch_too(store: cotensor.Store) -> None:
    module = follower(store)
    done = threading.Event()
    seen, mixed = set(), []

    def run(pause: float) -> None:
        while not done.is_set():
            one, other = module(lambda: time.sleep(pause))
            seen.add(one)
            if one != other:
                mixed.append((one, other))

    threads = [threading.Thread(target=run, args=(pause,)) for pause in (0.003, 0.004, 0.005)]
    for thread in threads:
        thread.start()
    try:
        for value in (2.0, 3.0, 4.0):
            ct.publish(Weighed(value), "weighed", store)
            deadline = time.monotonic() + 60
            while value not in seen and time.monotonic() < deadline:
                time.sleep(0.005)
        # Whoever wants the module for himself gets it.
        assert ct.refresh(module) is False
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert {2.0, 3.0, 4.0} <= seen and not mixed


def test_passes_with_generators_are_of_one_version(store: cotensor.Store) -> None:
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
        ct.publish(Weighed(value), "weighed", store)
    done.set()
    for thread in threads:
        thread.join()
    assert not mixed


def test_version_that_does_not_fit_does_not_block_passes(store: cotensor.Store) -> None:
    module = follower(store)
    ct.publish(torch.nn.Linear(2, 2), "weighed", store)
    assert module() == (1, 1)
    inside, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: module(lambda: (inside.set(), go_on.wait(60))))
    thread.start()
    assert inside.wait(60)
    gate = ct.weights.models._states[module].gate
    assert not gate._must_wait(module)
    assert module() == (1, 1)
    go_on.set()
    thread.join()


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


def test_a_note_that_cannot_be_read_is_a_version_that_does_not_fit(store: cotensor.Store) -> None:
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
        ct.publish(Weighed(2), "weighed", store)
        inner.append(module())
        with pytest.raises(cotensor.ConflictError):
            ct.refresh(module)

    assert module(publish_and_pass) == (1, 1) and inner == [(1, 1)]
    assert module() == (2, 2)


def test_a_child_that_was_forked_during_a_pass_follows(daemon: Any) -> None:
    with daemon.connect() as store:
        module = follower(store)
        inside, go_on = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: module(lambda: (inside.set(), go_on.wait(60))))
        thread.start()
        assert inside.wait(60)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                module()
                os._exit(0 if not ct.refresh(module) else 2)
            finally:
                os._exit(code)
        deadline, ended = time.monotonic() + 60, (0, 0)
        while ended[0] == 0 and time.monotonic() < deadline:
            ended = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        go_on.set()
        thread.join()
        assert ended[0] == child and os.waitstatus_to_exitcode(ended[1]) == 0
