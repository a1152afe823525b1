"""Functions of one process, called from another."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Iterator

import numpy as np
import pytest
from functions_common import Program, program, providing, run, until

from cotensor import (
    ConflictError,
    InvalidError,
    NotFoundError,
    RefusedError,
    SystemFailure,
    TimedOutError,
    UnsupportedError,
    errors,
)
from cotensor.client import SharedTensorClient
from cotensor.functions import RemoteObject
from cotensor.provider import SharedTensorProvider

FUNCTIONS = '''
runs = {"cached": 0, "flown": 0}
released = threading.Event()

@provider.share
def add(a, b, *, c=0):
    """Adds numbers.

    More about it."""
    return a + b + c

@provider.share(name="identity")
def same(x):
    return x

@provider.share()
def kind(x):
    return f"{type(x).__module__}.{type(x).__name__}"

@provider.share
def scale(x, factor):
    return {"scaled": [x * np.float32(factor)], "given": x}

@provider.share
def address(x):
    return x.__array_interface__["data"][0], bool(x.flags.writeable)

@provider.share
def fail(kind, message):
    raise getattr(__builtins__, kind, ValueError)(message)

@provider.share
def fail_oddly():
    class Odd(Exception):
        pass
    raise Odd("odd")

@provider.share
def not_found_inside():
    from cotensor import NotFoundError
    runs["inside"] = runs.get("inside", 0) + 1
    raise NotFoundError("within", field="name")

@provider.share
def ran(name):
    return runs.get(name, 0)

@provider.share(cache=True)
def cached(x):
    runs["cached"] += 1
    return x + 1

@provider.share(cache={"ttl": 3600, "capacity": 1})
def cached_one(x):
    runs["one"] = runs.get("one", 0) + 1
    return x

@provider.share(singleflight=True)
def flown(x):
    runs["flown"] += 1
    released.wait(60)
    return x

@provider.share
def release():
    released.set()

active = []
most = []

@provider.share(concurrency="serialized")
def alone():
    active.append(1)
    most.append(len(active))
    time.sleep(0.005)
    active.pop()
    return max(most)

@provider.share(managed=True)
def counter(start=0):
    class Counter:
        def __init__(self):
            self.count = start
        def more(self, by=1):
            self.count += by
            return self.count
        def __call__(self, x):
            return x * self.count
        def _hidden(self):
            return "hidden"
        def fail(self):
            raise KeyError("not there")
    return Counter()

@provider.share
def count_of(counter):
    return counter.count, type(counter).__name__

@provider.share
def die():
    os._exit(7)

@provider.share
def thing():
    return object()

@provider.share
def endless():
    x = []
    x.append(x)
    return x

@provider.share
def big():
    return 1 << 64

@provider.share
def numbered():
    return {1: 2}

@provider.share(timeout=0.05)
def limited():
    while True:
        check_cancelled()
        time.sleep(0.005)

stopped = threading.Event()

@provider.share
def long():
    try:
        while True:
            check_cancelled()
            time.sleep(0.005)
    finally:
        stopped.set()

@provider.share
def was_stopped():
    return stopped.wait(60)

@provider.share
def who():
    return current_call().function, current_call().client
'''


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS) as running:
        yield running


@pytest.fixture
def client(daemon, provider) -> Iterator[SharedTensorClient]:
    # Another test of this run may have imported torch.
    with SharedTensorClient(socket=daemon.socket, retry_count=0, tensors="numpy") as opened:
        yield opened


VALUES = [
    None,
    True,
    0,
    -(1 << 63),
    (1 << 63) - 1,
    0.5,
    float("inf"),
    "text, ünïcode \U0001f600",
    "",
    b"\x00\xff",
    [],
    [1, [2, ["x", None]]],
    (1, (2, 3)),
    (),
    {},
    {"a": {"b": [1, (2,)]}, "": 1},
]


@pytest.mark.parametrize("value", VALUES, ids=[repr(value)[:30] for value in VALUES])
def test_values_cross_as_they_are(client, value):
    back = client.call_function("identity", [value])
    assert back == value and type(back) is type(value)


def test_not_a_number_crosses(client):
    assert np.isnan(client.call_function("identity", [float("nan")]))


def test_calls_by_name_by_attribute_and_by_keyword(client):
    assert client.call_function("add", [1, 2]) == 3
    assert client.call_function("add", (1,), {"b": 2, "c": 3}) == 6
    assert client.call_function("add", kwargs={"a": 1, "b": 2}) == 3
    assert client.add(1, 2) == 3
    assert client.functions.add(1, b=2) == 3
    assert client.functions["add"](1, 2, c=4) == 7
    assert "add" in dir(client.functions)
    assert repr(client.functions.a.b) == "<RemoteFunction a.b>"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "float16"])
def test_tensors_travel_nested_and_in_every_dtype(client, dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    back = client.call_function("identity", [{"deep": [(x, x.T), {"x": x[:, ::2]}]}])
    (straight, turned), inner = back["deep"][0], back["deep"][1]["x"]
    for found, wanted in ((straight, x), (turned, x.T), (inner, x[:, ::2])):
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_a_tensor_of_the_store_is_not_copied(client):
    x = client.store.put("functions/x", np.arange(1000, dtype=np.float32))
    before = client.store.get_stats()
    back = client.call_function("identity", [x])
    assert np.array_equal(back, np.arange(1000))
    after = client.store.get_stats()
    assert back.__array_interface__["data"][0] == x.numpy().__array_interface__["data"][0], "the same memory"
    assert after["total_tensors"] == before["total_tensors"]
    assert after.get("copies") == before.get("copies")


def test_results_with_tensors(client):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = client.call_function("scale", [x, 2])
    assert np.array_equal(back["scaled"][0], x * 2) and np.array_equal(back["given"], x)


def test_what_tensors_come_as(daemon, provider):
    x = np.arange(4)
    auto = "Tensor" if "torch" in sys.modules else "ndarray"
    for tensors, wanted in (("numpy", "ndarray"), ("cotensor", "Tensor"), ("auto", auto)):
        with SharedTensorClient(socket=daemon.socket, tensors=tensors) as client:
            assert type(client.call_function("identity", [x])).__name__ == wanted
    with pytest.raises(InvalidError, match="tensors"):
        SharedTensorClient(socket=daemon.socket, tensors="lists")


def test_numpy_scalars_are_numbers(client):
    assert client.call_function("identity", [np.float32(0.5)]) == 0.5
    assert client.call_function("identity", [np.int64(7)]) == 7


# -- wrong arguments ---------------------------------------------


def test_wrong_arguments_are_named(client):
    for args, kwargs, said in (
        ([1], {}, r"add\(a, b, \*, c=0\): missing a required argument: 'b'"),
        ([1, 2, 3], {}, r"add\(a, b, \*, c=0\): too many positional arguments"),
        ([1, 2], {"d": 3}, r"add\(a, b, \*, c=0\): unknown argument 'd'"),
        ([1], {"a": 2}, r"multiple values for argument 'a'"),
    ):
        with pytest.raises(TypeError, match=said) as raised:
            client.call_function("add", args, kwargs)
        assert isinstance(raised.value, errors.RemoteError)
    # One that the function raises itself is the function's.
    with pytest.raises(TypeError, match="unsupported operand"):
        client.call_function("add", [1, "x"])


@pytest.mark.parametrize(
    ("value", "wrong", "said"),
    [
        (1 << 64, InvalidError, "more than 64 bits"),
        ({1: 2}, InvalidError, "keys that are no strings"),
        (object(), UnsupportedError, "object does not cross"),
        ({"$pickle": b""}, InvalidError, "pickle"),
        ([{"x": {1, 2}}], UnsupportedError, r"argument 0\[0\]\[\"x\"\]"),
    ],
)
def test_what_does_not_cross_is_refused_where_it_is(client, value, wrong, said):
    with pytest.raises(wrong, match=said):
        client.call_function("identity", [value])
    assert client.call_function("identity", [1]) == 1


def test_arguments_without_an_end(client):
    x: list = []
    x.append(x)
    with pytest.raises(InvalidError, match="nested deeper"):
        client.call_function("identity", [x])
    y: dict = {}
    y["y"] = {"again": y}
    with pytest.raises(InvalidError, match="nested deeper"):
        client.call_function("identity", [y])


def test_results_that_do_not_cross(client):
    for name, said in (
        ("thing", "object does not cross.*managed=True"),
        ("endless", "nested deeper"),
        ("big", "64 bits"),
        ("numbered", "keys that are no strings"),
    ):
        with pytest.raises(errors.RemoteError, match=said):
            client.call_function(name)


def test_arguments_that_are_none(client):
    for args, kwargs, field in (("ab", None, "args"), (5, None, "args"), ([], [1], "kwargs"), ([], {1: 2}, "kwargs")):
        with pytest.raises(InvalidError) as raised:
            client.call_function("add", args, kwargs)
        assert raised.value.field == field
    with pytest.raises(InvalidError, match="name"):
        client.call_function("")


# -- what goes wrong ---------------------------------------------


def test_exceptions_cross_with_type_message_and_place(client):
    with pytest.raises(ZeroDivisionError, match="by zero") as raised:
        client.call_function("fail", ["ZeroDivisionError", "by zero"])
    error = raised.value
    assert isinstance(error, errors.RemoteError)
    assert error.type == "ZeroDivisionError" and error.message == "by zero"
    assert "in fail" in error.remote_traceback
    with pytest.raises(errors.RemoteError) as raised:
        client.call_function("fail_oddly")
    assert raised.value.type.endswith("Odd") and raised.value.message == "odd"
    with pytest.raises(KeyError):
        client.call_function("fail", ["KeyError", "k"])


def test_an_error_of_ours_inside_a_function_is_not_taken_for_a_missing_function(daemon, provider):
    with SharedTensorClient(socket=daemon.socket, retry_count=3) as client:
        before = client.call_function("ran", ["inside"])
        with pytest.raises(NotFoundError) as raised:
            client.call_function("not_found_inside")
        assert isinstance(raised.value, errors.RemoteError)
        assert client.call_function("ran", ["inside"]) == before + 1, "a call that ran is never repeated"


def test_missing_functions(client):
    with pytest.raises(NotFoundError, match="nobody provides"):
        client.call_function("nonexistent")
    assert not client.has_function("nonexistent") and client.has_function("add")
    # Nothing can be called that was not offered.
    for name in ("os.system", "builtins.eval", "provider.share", "die.__globals__"):
        with pytest.raises(NotFoundError):
            client.call_function(name)


def test_time_limits(client):
    with pytest.raises(TimedOutError, match="not done after"):
        client.call_function("limited")
    with pytest.raises(TimedOutError):
        client.call_function("long", timeout=0.05)
    assert client.call_function("was_stopped"), "the run was asked to stop"
    for wrong in (0, -1, "x"):
        with pytest.raises(InvalidError, match="timeout"):
            SharedTensorClient(timeout=wrong)


def test_a_provider_that_dies_in_a_call(daemon):
    with program(_dying(daemon.socket)) as dying:
        assert dying.line() == "ready"
        with SharedTensorClient(socket=daemon.socket, retry_count=0) as client:
            with pytest.raises(SystemFailure, match="gone"):
                client.call_function("dying.die")
            dying.finish()
            assert dying.process.returncode == 7
            with pytest.raises(NotFoundError):
                client.call_function("dying.die")


def _dying(socket) -> str:
    return f"""
import os
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket={str(socket)!r}, execution_mode="server")
@provider.share(name="dying.die")
def die():
    os._exit(7)
@provider.share(name="dying.object", managed=True)
def make():
    return [1, 2]
print("ready", flush=True)
provider.serve()
"""


# -- options ---------------------------------------------


def test_results_are_kept_by_content_and_only_if_asked(client):
    x = np.arange(1000, dtype=np.float32)
    first = client.call_function("cached", [x])
    again = client.call_function("cached", [x.copy()])
    other = client.call_function("cached", [x + 1])
    assert np.array_equal(first, again) and np.array_equal(other, x + 2)
    assert client.call_function("ran", ["cached"]) == 2
    for value in (1, 2, 1):
        assert client.call_function("cached_one", [value]) == value
    assert client.call_function("ran", ["one"]) == 3, "only one is kept"


def test_equal_calls_at_the_same_time_run_once(daemon, client):
    results = []
    threads = [threading.Thread(target=lambda: results.append(client.call_function("flown", [5]))) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: client.call_function("ran", ["flown"]) == 1)
    client.call_function("release")
    for thread in threads:
        thread.join(60)
    assert results == [5] * 5 and client.call_function("ran", ["flown"]) == 1


def test_serialized_functions_run_one_at_a_time(client):
    most = []
    threads = [threading.Thread(target=lambda: most.append(client.call_function("alone"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8


def test_functions_know_their_call(client):
    function, caller = client.call_function("who")
    assert function == "who" and str(os.getpid()) in caller


def test_lists(client):
    by_name = {each["name"]: each for each in client.list_functions()}
    assert {"add", "identity", "counter"} <= set(by_name)
    assert by_name["add"]["summary"] == "Adds numbers. add(a, b, *, c=0)"
    assert [each["name"] for each in client.list_functions("cached")] == ["cached", "cached_one"]
    assert client.ping()


# -- objects ---------------------------------------------


def test_managed_results_stay_and_are_called(client):
    with client.call_function("counter", [5]) as counter:
        assert isinstance(counter, RemoteObject)
        assert counter.more() == 6 and counter.more(by=4) == 10
        assert counter(3) == 30
        assert client.call_function("count_of", [counter]) == (10, "Counter"), "the object itself, in its process"
        assert client.call_function("count_of", kwargs={"counter": counter}) == (10, "Counter")
        with pytest.raises(KeyError, match="not there"):
            counter.fail()
        with pytest.raises(AttributeError, match="no method"):
            counter.missing()
        with pytest.raises(AttributeError):
            counter._hidden()
        with pytest.raises(errors.RemoteError, match="no method"):
            counter.call_method("_hidden")
    with pytest.raises(ConflictError, match="given back"):
        counter.more()
    with pytest.raises(ConflictError, match="given back"):
        counter.release()


def test_objects_are_each_their_own(client):
    one, two = client.call_function("counter", [1]), client.call_function("counter", [2])
    assert one.id != two.id and one.epoch == two.epoch
    one.release()
    assert two.more() == 3
    assert "RemoteObject" in repr(two) and "given back" in repr(one)


def test_objects_of_a_provider_that_is_gone_are_stale(daemon, client):
    with program(_dying(daemon.socket)) as dying:
        assert dying.line() == "ready"
        with SharedTensorClient(socket=daemon.socket, retry_count=0) as mine:
            made = mine.call_function("dying.object")
            assert made.__call__ is not None
            # Another provider's functions do not get it.
            with pytest.raises(ConflictError, match="lives with"):
                mine.call_function("identity", [made])
            # Nor does it go over another client's connection.
            with pytest.raises(ConflictError):
                client.call_function("dying.object", [made])
            dying.signal(signal.SIGKILL)
            dying.finish()
            until(lambda: not mine.has_function("dying.object"))
            with program(_dying(daemon.socket)) as again:
                assert again.line() == "ready"
                with pytest.raises(ConflictError, match="ended or restarted"):
                    made.call_method("__len__")
                fresh = mine.call_function("dying.object")
                assert fresh.epoch != made.epoch


# -- pickles ---------------------------------------------

PICKLED = """
class Thing: pass
@provider.share(name="{0}.set")
def make():
    return {{1, 2, 3}}
@provider.share(name="{0}.identity")
def same(x):
    return x
"""


def test_pickles_cross_only_if_both_sides_allow(daemon):
    with (
        providing(daemon.socket, PICKLED.format("open"), "allow_pickle=True"),
        providing(daemon.socket, PICKLED.format("closed")),
    ):
        with SharedTensorClient(socket=daemon.socket, allow_pickle=True) as trusting:
            assert trusting.call_function("open.set") == {1, 2, 3}
            assert trusting.call_function("open.identity", [{"x": {4}}]) == {"x": {4}}
            with pytest.raises(errors.RemoteError, match="allow_pickle"):
                trusting.call_function("closed.identity", [{4}])
            with pytest.raises(errors.RemoteError, match="allow_pickle"):
                trusting.call_function("closed.set")
        with SharedTensorClient(socket=daemon.socket) as careful:
            with pytest.raises(RefusedError, match="can run anything"):
                careful.call_function("open.set")
            with pytest.raises(UnsupportedError, match="allow_pickle"):
                careful.call_function("open.identity", [{4}])
            assert careful.call_function("open.identity", [4]) == 4


# -- modes and options of providers ---------------------------------------------


def test_local_mode_needs_no_daemon():
    provider = SharedTensorProvider(socket="/nonexistent/s", execution_mode="local")

    @provider.share(name="local")
    def function(x):
        return x + 1

    assert function(1) == 2 and provider.list_functions() == ["local"]
    assert provider._registered_functions["local"].function is function
    with pytest.raises(ConflictError, match="local mode"):
        provider.start()


def test_client_mode_calls_the_function_elsewhere(daemon, provider):
    here = SharedTensorProvider(socket=daemon.socket, execution_mode="client")

    @here.share
    def add(a, b, *, c=0):
        raise AssertionError("it runs elsewhere")

    with here:
        assert add(1, 2, c=3) == 6
        assert add.__name__ == "add"


def test_server_mode_refuses_names_that_are_taken_and_auto_leaves_them(daemon, provider, caplog):
    with SharedTensorProvider(socket=daemon.socket, execution_mode="server") as here:
        with pytest.raises(ConflictError, match="add"):
            here.share(name="add")(lambda: None)
        here.share(name="here.once")(lambda: 1)
        with pytest.raises(ConflictError, match="already"):
            here.share(name="here.once")(lambda: 2)
    with SharedTensorProvider(socket=daemon.socket) as here:

        @here.share
        def add(a, b):
            return "mine"

        assert add(1, 2) == "mine"
        assert "another process" in caplog.text
        with SharedTensorClient(socket=daemon.socket) as client:
            assert client.add(1, 2) == 3
    with SharedTensorClient(socket=daemon.socket, retry_count=0) as client, pytest.raises(NotFoundError):
        client.call_function("here.once")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"execution": "later"}, "execution"),
        ({"concurrency": "some"}, "concurrency"),
        ({"cache": {"tll": 1}}, "cache"),
        ({"cache": 5}, "cache"),
        ({"name": 5}, "name"),
        ({"timeout": -1.0}, "timeout"),
        ({"name": "with space"}, "name"),
    ],
)
def test_wrong_options_name_the_option(daemon, options, field):
    with SharedTensorProvider(socket=daemon.socket) as here:
        with pytest.raises(InvalidError) as raised:
            here.share(**options)(lambda: None)
        assert raised.value.field == field
        assert not here.list_functions()


def test_functions_are_taken_back(daemon):
    with SharedTensorClient(socket=daemon.socket, retry_count=0) as client:
        with SharedTensorProvider(socket=daemon.socket) as here:
            here.share(name="here.one")(lambda: 1)
            here.share(name="here.two")(lambda: 2)
            assert client.call_function("here.one") == 1
            here.remove("here.one")
            with pytest.raises(NotFoundError):
                client.call_function("here.one")
            assert client.call_function("here.two") == 2
        with pytest.raises(ConflictError, match="closed"):
            here.start()
        with pytest.raises(NotFoundError):
            client.call_function("here.two")


def test_a_closed_client_says_so(daemon, provider):
    client = SharedTensorClient(socket=daemon.socket)
    assert client.add(1, 1) == 2
    client.close()
    client.close()
    with pytest.raises(ConflictError, match="closed"):
        client.add(1, 1)
    assert "closed" in repr(client)


def test_nothing_is_left_behind(daemon, provider):
    with daemon.connect() as store:
        for _ in range(3):
            with SharedTensorClient(socket=daemon.socket) as client:
                x = np.ones(100_000, np.float32)
                for _ in range(5):
                    client.call_function("scale", [x, 2])
                client.call_function("counter")
        # What results took is given back with their clients, and not much later.
        until(lambda: not [name for name in store.names() if "scale" in name or "arguments" in name])


def test_help_teaches():
    for thing in (
        SharedTensorProvider,
        SharedTensorProvider.share,
        SharedTensorClient,
        SharedTensorClient.call_function,
    ):
        assert thing.__doc__ and len(thing.__doc__) > 200


def test_run_helper_sees_failures():
    with pytest.raises(AssertionError):
        run("raise SystemExit(3)")
