"""A store as a mapping of names, and waiting for names."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable, List, Optional

import pytest

np = pytest.importorskip("numpy")

from conftest import serving  # noqa: E402

import cotensor  # noqa: E402

numbers = itertools.count()


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses."""
    return f"t{next(numbers)}."


def in_background(act: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_store_is_a_mapping_of_names(store: cotensor.Store, prefix: str) -> None:
    before = len(store)
    store[prefix + "b"] = np.arange(4)
    store[prefix + "a"] = [1.5, 2.5]
    assert len(store) == before + 2 and bool(store)
    assert store[prefix + "b"].numpy().tolist() == [0, 1, 2, 3]
    assert prefix + "a" in store and prefix not in store
    assert [name for name in store if name.startswith(prefix)] == [prefix + "a", prefix + "b"]
    assert store.names(prefix) == [prefix + "a", prefix + "b"] and store.names(prefix + "c") == []
    store[prefix + "a"] = np.zeros(3)
    assert store[prefix + "a"].version == 2
    del store[prefix + "a"]
    assert prefix + "a" not in store
    for missing in (lambda: store[prefix + "a"], lambda: store.__delitem__(prefix + "a")):
        with pytest.raises(KeyError, match=prefix):
            missing()
    with pytest.raises(cotensor.InvalidError, match="name"):
        store[1]  # type: ignore[index]


def test_store_has_the_methods_of_a_dict(store: cotensor.Store, prefix: str) -> None:
    a, b = f"{prefix}a", f"{prefix}b"
    store.update({a: np.zeros(2)}, **{b: np.ones(3)})
    store.update([(a, np.full(2, 5.0))])
    assert isinstance(store, Mapping) and {a, b} <= set(store.keys()) and a in store.keys()
    assert {a, b} - store.keys() == set() and len(store.items()) == len(store.values()) == len(store)
    found = {name: tensor.numpy().tolist() for name, tensor in store.items() if name.startswith(prefix)}
    assert found == {a: [5.0, 5.0], b: [1.0, 1.0, 1.0]}
    assert sorted(found) == sorted(name for name in {**store} if name.startswith(prefix))
    assert dict(store)[b].shape == (3,) and any(tensor.name == b for tensor in store.values())
    assert store.get(a).name == a and store.get(a, None).name == a
    assert store.get(f"{prefix}none", None) is None and store.get(f"{prefix}none", 7) == 7
    for search in (store.get, store.pop, lambda name: store[name]):
        with pytest.raises(KeyError):
            search(f"{prefix}none")
    for search in (store.get, store.pop):
        with pytest.raises(TypeError, match="at most one default"):
            search(a, None, None)
    assert 1 not in store and None not in store and a in store
    with pytest.raises(TypeError, match="name in store"):
        store[a] in store.values()  # noqa: B015

    popped = store.pop(a)
    assert popped.numpy().tolist() == [5.0, 5.0] and a not in store
    assert store.pop(a, None) is None and store.pop(a, 3) == 3
    assert store.pop(b, None).shape == (3,) and len(store.names(prefix)) == 0


def test_update_from_a_store_leaves_out_what_is_removed_meanwhile(store: cotensor.Store, prefix: str) -> None:
    with cotensor.Store() as source:
        source.update({f"{prefix}{index}": np.full(1, index) for index in range(100)})
        done = threading.Event()

        def remove_and_publish() -> None:
            while not done.is_set():
                source.pop(f"{prefix}50", None)
                source[f"{prefix}50"] = np.full(1, 50)

        thread = threading.Thread(target=remove_and_publish)
        thread.start()
        try:
            for _ in range(100):
                store.update(source)
        finally:
            done.set()
            thread.join()
    assert int(store[f"{prefix}99"]) == 99


def test_items_leave_out_what_is_removed_meanwhile(store: cotensor.Store, prefix: str) -> None:
    store.put_many({f"{prefix}{index:03}": np.full(1, index) for index in range(600)})
    seen = []
    for name, tensor in store.items():
        if not name.startswith(prefix):
            continue
        seen.append((name, int(tensor)))
        store.pop(f"{prefix}599", None)
    assert seen == [(f"{prefix}{index:03}", index) for index in range(599)]


def test_one_program_gets_a_name_that_several_pop(prefix: str) -> None:
    with serving() as daemon:
        stores = [cotensor.connect(daemon.socket) for _ in range(4)]
        stores[0].put_many({f"{prefix}{index}": np.full(1, index) for index in range(50)})
        got: List[int] = []

        def take(store: cotensor.Store) -> None:
            for name in store.names(prefix):
                tensor = store.pop(name, None)
                if tensor is not None:
                    got.append(int(tensor))

        threads = [threading.Thread(target=take, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == list(range(50))


def test_a_popped_version_is_popped_once(prefix: str) -> None:
    name = f"{prefix}job"
    with serving() as daemon:
        stores = [cotensor.connect(daemon.socket) for _ in range(5)]
        got: List[int] = []
        published, ended = 0, threading.Event()

        def consume(store: cotensor.Store) -> None:
            while not ended.is_set():
                tensor = store.pop(name, None)
                if tensor is not None:
                    got.append(int(tensor))

        threads = [threading.Thread(target=consume, args=(store,)) for store in stores[1:]]
        for thread in threads:
            thread.start()
        while published < 1000:
            if name not in stores[0]:
                stores[0][name] = np.full(1, published)
                published += 1
        while name in stores[0]:
            pass
        ended.set()
        for thread in threads:
            thread.join()
        assert sorted(got) == list(range(1000))


def test_removed_name_is_not_listed_while_it_is_leased(store: cotensor.Store, prefix: str) -> None:
    tensor = store.put(prefix, [1])
    store.remove(prefix)
    assert prefix not in store and store.names(prefix) == []
    assert tensor.numpy().tolist() == [1]


def test_empty_store_is_true() -> None:
    assert len(cotensor.Store()) == 0 and cotensor.Store()


def test_membership_counts_no_hit(store: cotensor.Store, prefix: str) -> None:
    store[prefix] = [1]

    def hits() -> int:
        return int(store.get_stats()["cache_hits"])

    before = hits()
    assert prefix in store and store.names(prefix) == [prefix]
    assert hits() == before


def test_many_tensors_at_once(store: cotensor.Store, prefix: str) -> None:
    arrays = {f"{prefix}{index}": np.full(index, index) for index in range(5)}
    put = store.put_many(arrays)
    assert list(put) == list(arrays) and all(tensor.version == 1 for tensor in put.values())
    del put
    got = store.get_many(list(reversed(arrays)))
    assert list(got) == list(reversed(arrays))
    assert all(np.array_equal(got[name].numpy(), arrays[name]) for name in arrays)
    with pytest.raises(KeyError, match="absent"):
        store.get_many([f"{prefix}1", f"{prefix}absent"])
    assert list(store.get_many([f"{prefix}absent", f"{prefix}1"], missing_ok=True)) == [f"{prefix}1"]
    with pytest.raises(cotensor.CotensorError, match="wrong"):
        store.put_many({f"{prefix}new": [1], f"{prefix}wrong": object()})
    assert f"{prefix}new" not in store, "every array is checked before the first one is published"


def test_names_beyond_one_answer() -> None:
    with serving() as daemon, daemon.connect() as store:
        # The daemon lists 4096 names at a time.
        names = [f"many.{number:05}" for number in range(4200)]
        store.put_many(dict.fromkeys(names, np.zeros(1, "uint8")))
        assert store.names("many.") == names
        assert len(store) == len(names)


def test_wait_returns_an_existing_tensor_at_once(store: cotensor.Store, prefix: str) -> None:
    store[prefix] = [1, 2]
    assert store.wait(prefix, timeout=0).numpy().tolist() == [1, 2]
    with pytest.raises(TimeoutError, match=prefix):
        store.wait(prefix + "absent", timeout=0)
    with pytest.raises(TimeoutError, match=prefix):
        store.wait(prefix, timeout=0.01, after=store[prefix])


def test_wait_returns_the_tensor_that_is_published_later(
    store: cotensor.Store, writer: cotensor.Store, prefix: str
) -> None:
    tensor: Optional[cotensor.Tensor] = None
    for expected in range(1, 20):
        thread = in_background(functools.partial(writer.put, prefix, [expected]))
        tensor = store.wait(prefix, timeout=60, after=tensor)
        thread.join()
        assert tensor.numpy().tolist() == [expected]


def test_wait_after_a_removed_version(store: cotensor.Store, writer: cotensor.Store, prefix: str) -> None:
    first = store.put(prefix, [1])
    writer.remove(prefix)
    thread = in_background(lambda: writer.put(prefix, [2]))
    second = store.wait(prefix, timeout=60, after=first)
    thread.join()
    assert second.numpy().tolist() == [2] and second.id != first.id


def test_watch_reports_versions_and_removals(store: cotensor.Store, writer: cotensor.Store, prefix: str) -> None:
    store[prefix + "old"] = [0]
    with store.watch(prefix) as watch:
        tensor = writer.put(prefix + "x", [1])
        change = watch.get(60)
        assert (change.name, change.version, change.id, change.removed) == (prefix + "x", 1, tensor.id, False)
        assert store.lease(change.id).numpy().tolist() == [1]
        writer["unwatched" + prefix] = [1]
        writer[prefix + "x"] = [2]
        assert next(watch).version == 2
        del writer[prefix + "x"]
        change = next(watch)
        assert change.removed and change.version is None and change.id is None
        with pytest.raises(TimeoutError):
            watch.get(0.01)
    with pytest.raises(StopIteration):
        next(watch)
    with pytest.raises(cotensor.ConflictError, match="closed"):
        watch.get()


def test_watch_of_one_name_and_of_existing_names(store: cotensor.Store, writer: cotensor.Store, prefix: str) -> None:
    writer[prefix + "a"] = [1]
    writer[prefix + "ab"] = [1]
    with store.watch(name=prefix + "a", existing=True) as one, store.watch(prefix, existing=True) as both:
        assert [one.get(60).name] == [prefix + "a"]
        assert [both.get(60).name for _ in range(2)] == [prefix + "a", prefix + "ab"]
        del writer[prefix + "ab"]
        assert both.get(60).removed
        with pytest.raises(TimeoutError):
            one.get(0)
    with pytest.raises(cotensor.InvalidError, match="not both"):
        store.watch(prefix, name=prefix)


def test_slow_watch_gets_the_newest_version_once(store: cotensor.Store, writer: cotensor.Store, prefix: str) -> None:
    with store.watch(prefix) as watch:
        for value in range(10):
            writer[prefix + "x"] = [value]
        writer[prefix + "gone"] = [1]
        del writer[prefix + "gone"]
        assert watch.get(60).version == 10
        with pytest.raises(TimeoutError):
            watch.get(0.01)


def test_watch_reports_the_end_of_an_unkept_tensor(store: cotensor.Store, writer: cotensor.Store, prefix: str) -> None:
    with store.watch(prefix) as watch:
        tensor = writer.put(prefix, [1], keep=False)
        assert watch.get(60).version == 1
        tensor.release()
        del tensor
        gc.collect()
        assert watch.get(60).removed


def test_closing_ends_a_waiting_iteration(store: cotensor.Store, prefix: str) -> None:
    watch = store.watch(prefix)
    seen: list[Any] = []
    thread = in_background(lambda: seen.extend(watch))
    store[prefix] = [1]
    while not seen:
        time.sleep(0.001)
    with pytest.raises(cotensor.ConflictError, match="another thread"):
        while True:
            watch.get(0)
    watch.close()
    thread.join(60)
    assert not thread.is_alive() and [change.name for change in seen] == [prefix]


def test_watch_that_fell_far_behind_lists_the_names(prefix: str) -> None:
    # More changes than the log keeps: of 4 MiB of names.
    store = cotensor.Store()
    long = "x" * 1000
    store["kept"] = [1]
    with store.watch() as watch:
        for number in range(4500):
            store[f"{number}{long}"] = [1]
        del store[f"0{long}"]
        del store["kept"]
        changes = [watch.get(60) for _ in range(4500)]
        with pytest.raises(TimeoutError):
            watch.get(0)
    found = {change.name: change.removed for change in changes}
    assert len(found) == 4500 and found.pop("kept")
    assert not any(found.values()) and f"0{long}" not in found


def test_waits_go_on_with_the_next_server() -> None:
    with serving() as daemon, daemon.connect() as store, daemon.connect() as writer:
        store["x"] = [1]
        first = store["x"]
        with store.watch() as watch:
            result: list[Any] = []
            thread = in_background(lambda: result.append(store.wait("x", timeout=60, after=first)))
            os.kill(daemon.info["server"], signal.SIGKILL)
            writer["x"] = [2]
            thread.join(60)
            assert result and result[0].numpy().tolist() == [2]
            assert (watch.get(60).name, store["x"].version) == ("x", 2)


def test_interrupt_ends_a_wait() -> None:
    program = """
import os, signal, threading, sys, cotensor
store = cotensor.connect(sys.argv[1]) if sys.argv[1] else cotensor.Store()
for wait in (lambda: store.wait("never"), lambda: next(store.watch())):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted")
"""
    with serving() as daemon:
        for socket in (str(daemon.socket), ""):
            ran = subprocess.run([sys.executable, "-c", program, socket], capture_output=True, text=True, timeout=60)
            assert ran.stdout.split() == ["interrupted"] * 2, ran.stderr
