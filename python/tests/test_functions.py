"""Calls of functions of another process: values, tensors, arguments, errors."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from functions_common import program
from functions_provided import exiting_provider
from memory_common import mapped_at

from cotensor import (
    InvalidError,
    IoError,
    NotFoundError,
    TimedOutError,
    UnsupportedError,
    errors,
)
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.client import SharedTensorClient
from cotensor.functions.retries import Retries
from cotensor.provider import SharedTensorProvider

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
def test_values_round_trip(client, value):
    back = client.call_function("identity", [value])
    assert back == value and type(back) is type(value)


def test_floats_round_trip_exactly(client):
    values = [float(value) for value in np.random.default_rng(1).random(2000) * 10.0 ** np.arange(-10, 10).repeat(100)]
    assert client.call_function("identity", [values]) == values


def test_nan_round_trips(client):
    assert np.isnan(client.call_function("identity", [float("nan")]))


def test_calls_by_name_by_attribute_and_by_keyword(client):
    assert client.call_function("add", [1, 2]) == 3
    assert client.call_function("add", (1,), {"b": 2, "c": 3}) == 6
    assert client.call_function("add", kwargs={"a": 1, "b": 2}) == 3
    assert client.add(1, 2) == 3
    assert client.functions.add(1, b=2) == 3
    assert client.functions["add"](1, 2, c=4) == 7
    assert "add" in dir(client.functions)
    assert repr(client.functions.add) == "<RemoteFunction add>"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "float16"])
def test_nested_tensors_of_every_dtype_round_trip(client, dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    back = client.call_function("identity", [{"deep": [(x, x.T), {"x": x[:, ::2]}]}])
    (straight, turned), inner = back["deep"][0], back["deep"][1]["x"]
    for found, wanted in ((straight, x), (turned, x.T), (inner, x[:, ::2])):
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


def test_tensor_of_the_store_is_not_copied(client):
    x = client.store.put("functions/x", np.arange(1000, dtype=np.float32))
    before = client.store.get_stats()
    back = client.call_function("identity", [x])
    assert np.array_equal(back, np.arange(1000))
    after = client.store.get_stats()
    assert mapped_at(back.ctypes.data) == mapped_at(x.data_ptr), "the same memory"
    assert after["total_tensors"] == before["total_tensors"]
    assert after.get("copies") == before.get("copies")


def test_tensor_of_another_connection_is_not_copied(daemon, client):
    import cotensor

    with cotensor.connect(daemon.socket) as other, SharedTensorClient(socket=daemon.socket, tensors="cotensor") as calling:
        x = other.put("functions/other", np.arange(1 << 20, dtype=np.float32))
        back = calling.call_function("identity", [{"x": x.numpy()}])["x"]
        assert back.id == x.id and np.array_equal(back.numpy(), x.numpy())


def test_result_contains_tensors(client):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = client.call_function("scale", [x, 2])
    assert np.array_equal(back["scaled"][0], x * 2) and np.array_equal(back["given"], x)


def test_tensors_option_selects_the_type(daemon, provider):
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
    assert client.call_function("identity", [np.str_("a")]) == "a"


def test_dicts_keep_their_order(client):
    given = {"z": 1, "a": {"y": np.arange(2), "b": 2}, "$m": 3}
    back = client.call_function("identity", [given])
    assert list(back) == list(given) and list(back["a"]) == ["y", "b"]
    assert list(client.call_function("named", kwargs={"z": 1, "a": 2})) == ["z", "a"]


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
    # A TypeError of the function itself keeps its message.
    with pytest.raises(TypeError, match="unsupported operand"):
        client.call_function("add", [1, "x"])


@pytest.mark.parametrize(
    ("value", "wrong", "said"),
    [
        (1 << 64, InvalidError, "more than 64 bits"),
        ({1: 2}, InvalidError, "keys that are not strings"),
        (object(), UnsupportedError, "object does not cross"),
        ({"$pickle": b""}, InvalidError, "pickle"),
        ([np.longdouble(1)], UnsupportedError, r"argument 0\[0\]: numpy.*longdouble does not cross"),
        (np.datetime64("2024-01-02T03:04:05.000000006"), UnsupportedError, "argument 0: numpy.datetime64 does not cross"),
        ({"x": np.timedelta64(5, "Y")}, UnsupportedError, r"argument 0\[\"x\"\]: numpy.timedelta64 does not cross"),
        (np.array([(1, 2.0)], "i4,f8")[0], UnsupportedError, "argument 0: numpy.void does not cross"),
        ([{"x": {1, 2}}], UnsupportedError, r"argument 0\[0\]\[\"x\"\]"),
        ({"x": [np.zeros(2, object)]}, UnsupportedError, r"argument 0\[\"x\"\]\[0\]: dtype object"),
    ],
)
def test_unsupported_arguments_are_named_by_path(client, value, wrong, said):
    with pytest.raises(wrong, match=said):
        client.call_function("identity", [value])
    assert client.call_function("identity", [1]) == 1


def test_recursive_arguments_are_refused(client):
    x: list = []
    x.append(x)
    with pytest.raises(InvalidError, match=r"^argument 0(\[0\]){8}…: the value is nested deeper"):
        client.call_function("identity", [x])
    y: dict = {}
    y["y"] = {"again": y}
    with pytest.raises(InvalidError, match="nested deeper"):
        client.call_function("identity", [y])


def test_unsupported_results_are_refused(client):
    for name, said in (
        ("plain_object", "object does not cross.*managed=True"),
        ("endless", "nested deeper"),
        ("big", "64 bits"),
        ("numbered", "keys that are not strings"),
    ):
        with pytest.raises(errors.RemoteError, match=said):
            client.call_function(name)


def test_args_and_kwargs_of_wrong_types_are_named(client):
    for args, kwargs, field in (("ab", None, "args"), (5, None, "args"), ([], [1], "kwargs"), ([], {1: 2}, "kwargs")):
        with pytest.raises(InvalidError) as raised:
            client.call_function("add", args, kwargs)
        assert raised.value.field == field
    with pytest.raises(InvalidError, match="name"):
        client.call_function("")


# -- errors ------------------------------------------------------


def test_exceptions_keep_type_message_and_traceback(client):
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


def test_not_found_error_of_a_function_is_not_retried(daemon, provider):
    with SharedTensorClient(socket=daemon.socket, retry_count=3) as client:
        before = client.call_function("ran", ["inside"])
        with pytest.raises(NotFoundError) as raised:
            client.call_function("not_found_inside")
        assert isinstance(raised.value, errors.RemoteError)
        assert client.call_function("ran", ["inside"]) == before + 1, "a call that ran is not repeated"


def test_unknown_function_raises_not_found(client):
    with pytest.raises(NotFoundError, match="no client provides it"):
        client.call_function("nonexistent")
    assert not client.has_function("nonexistent") and client.has_function("add")
    # Code that is not registered as a function cannot be called.
    for name in ("os.system", "builtins.eval", "provider.share", "die.__globals__"):
        with pytest.raises(NotFoundError):
            client.call_function(name)


@pytest.mark.parametrize("kind", [SharedTensorClient, AsyncSharedTensorClient])
@pytest.mark.parametrize("of_call", [True, False])
def test_call_waits_for_a_provider(daemon, monkeypatch, kind, of_call):
    retried, next_pause = threading.Event(), Retries.next_pause

    def observed(self, error):
        retried.set()
        return next_pause(self, error)

    monkeypatch.setattr(Retries, "next_pause", observed)
    name = f"waited.{kind.__name__}.{of_call}"
    client = kind(socket=daemon.socket, retry_count=0, wait=None if of_call else 60)
    options = {"wait": 60} if of_call else {}
    with SharedTensorProvider(socket=daemon.socket) as provider, client:
        # A similar name is no reason to give up: the provider of the function starts.
        provider.share(name=f"{name}s")(int)
        provider.start()

        def call():
            called = client.call_function(name, [4], **options)
            return asyncio.run(called) if asyncio.iscoroutine(called) else called

        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(call)
            assert retried.wait(60) and not found.done()
            provider.share(name=name)(lambda x: x + 1)
            assert found.result(60) == 5
        with pytest.raises(NotFoundError, match="did you mean"):
            SharedTensorClient(socket=daemon.socket).call_function(f"{name}x")


def test_attributes_of_a_waiting_client_wait_when_they_are_called(daemon, monkeypatch):
    retried, next_pause = threading.Event(), Retries.next_pause

    def observed(self, error):
        retried.set()
        return next_pause(self, error)

    monkeypatch.setattr(Retries, "next_pause", observed)
    client = SharedTensorClient(socket=daemon.socket, retry_count=0, wait=60)
    with SharedTensorProvider(socket=daemon.socket) as provider, client, ThreadPoolExecutor(3) as threads:
        calls = [lambda: client.later(4), lambda: client.functions.later.dotted(5), lambda: client.functions["later"](6)]
        found = [threads.submit(call) for call in calls]
        assert retried.wait(60) and not any(one.done() for one in found)
        provider.share(name="later.dotted")(int)
        provider.share(name="later")(int)
        assert [one.result(60) for one in found] == [4, 5, 6]
    with pytest.raises(AttributeError, match="later"):
        SharedTensorClient(socket=daemon.socket, retry_count=0).later  # noqa: B018


def test_wait_ends_at_the_timeout(daemon):
    with SharedTensorClient(socket=daemon.socket, retry_count=0, wait=600, timeout=0.3) as client:
        with pytest.raises(NotFoundError):
            client.call_function("nonexistent")
    for wrong in (-1, "x"):
        with pytest.raises(InvalidError, match="wait"):
            SharedTensorClient(wait=wrong)


def test_every_client_has_tasks(client):
    task = client.submit_task("add", [1, 2])
    assert client.wait_for_task(task, 60) == "completed" and client.get_task_result(task) == 3
    assert task in [status.task_id for status in client.list_tasks("completed")]


def test_call_times_out_and_is_cancelled(client):
    with pytest.raises(TimedOutError, match="timed out after"):
        client.call_function("limited")
    with pytest.raises(TimedOutError):
        client.call_function("long", timeout=0.05)
    assert client.call_function("was_stopped"), "the run was cancelled"
    for wrong in (0, -1, "x"):
        with pytest.raises(InvalidError, match="timeout"):
            SharedTensorClient(timeout=wrong)


def test_provider_exit_during_a_call_raises_io_error(daemon):
    with program(exiting_provider(daemon.socket)) as running:
        assert running.line() == "ready"
        with SharedTensorClient(socket=daemon.socket, retry_count=0) as client:
            with pytest.raises(IoError, match="has ended"):
                client.call_function("exiting.exit")
            running.finish()
            assert running.process.returncode == 7
            with pytest.raises(NotFoundError):
                client.call_function("exiting.exit")

