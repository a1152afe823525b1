"""Types of arguments and results, and exceptions with their causes."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections import OrderedDict, namedtuple
from enum import IntEnum

import numpy as np
import pytest
from functions_common import providing

from cotensor import InvalidError, RemoteError, UnsupportedError
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.client import SharedTensorClient

FUNCTIONS = """
from collections import OrderedDict, namedtuple
from enum import IntEnum

Point = namedtuple("Point", "x y")
class Colour(IntEnum):
    RED = 1
class Text(str): pass
RESULTS = {
    "float32": np.float32(1.5), "float64": np.float64(0.1), "int8": np.int8(-3), "bool": np.bool_(True), "str": np.str_("a"),
    "ordered": OrderedDict([("b", 1), ("a", np.float16(2))]), "point": Point(1, 2), "colour": Colour.RED, "text": Text("t"),
    "dict": {"b": 1, "a": (1, [True])},
}

@provider.share(name="types.result")
def result(name, deep=False):
    return [{"it": RESULTS[name]}] if deep else RESULTS[name]

@provider.share(name="types.kind")
def kind(value):
    return type(value).__name__

@provider.share(name="types.chain")
def chain():
    try:
        try:
            {}["first"]
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        raise RuntimeError("third") from error

@provider.share(name="types.loop")
def loop():
    error = RuntimeError("itself")
    error.__cause__ = error
    raise error

class Said(str):
    def __str__(self):
        return "an object"

@provider.share(name="types.raise")
def raise_(kind):
    if kind == "os":
        open("/no/such/file")
    if kind == "key":
        raise KeyError(("a", 1, None, b"b", [1.5, True]))
    if kind == "unicode":
        b"\\xff".decode()
    if kind == "cause":
        raise RuntimeError("outer") from ConnectionRefusedError(111, "refused")
    if kind == "object":
        raise ValueError(Said())
    if kind == "same name":
        raise type("UnicodeDecodeError", (Exception,), {})("mine")
    raise StopIteration(5)
"""


@pytest.fixture(scope="module")
def client(daemon):
    with providing(daemon.socket, FUNCTIONS), SharedTensorClient(socket=daemon.socket, retry_count=0) as opened:
        yield opened


@pytest.mark.parametrize("deep", [False, True])
def test_results_keep_their_type(client, deep):
    def result(name):
        found = client.call_function("types.result", [name, deep])
        return found[0]["it"] if deep else found

    for name, wanted in [
        ("float32", np.float32(1.5)),
        ("float64", np.float64(0.1)),
        ("int8", np.int8(-3)),
        ("bool", np.bool_(True)),
        ("str", np.str_("a")),
        ("dict", {"b": 1, "a": (1, [True])}),
    ]:
        found = result(name)
        assert type(found) is type(wanted) and found == wanted, name
    ordered = result("ordered")
    assert type(ordered) is OrderedDict and list(ordered) == ["b", "a"] and type(ordered["a"]) is np.float16


def test_types_that_would_be_lost_are_refused(client):
    for name, base in [("point", "tuple"), ("colour", "int"), ("text", "str")]:
        with pytest.raises(RemoteError, match=rf"would lose its type.*pass {base}\(") as raised:
            client.call_function("types.result", [name])
        assert "result" in str(raised.value)

    class Colour(IntEnum):
        RED = 1

    for value in (namedtuple("Point", "x")(1), Colour.RED, type("Text", (str,), {})("t"), type("D", (dict,), {})()):
        with pytest.raises(UnsupportedError, match="argument 0.*would lose its type"):
            client.call_function("types.kind", [value])


def test_function_gets_numpy_numbers_as_python_numbers(client):
    assert client.call_function("types.kind", [np.float32(1)]) == "float"
    assert client.call_function("types.kind", [np.int64(1)]) == "int"
    assert client.call_function("types.kind", [OrderedDict(a=1)]) == "OrderedDict"


def test_exceptions_keep_their_causes(client):
    with pytest.raises(RuntimeError, match="third") as raised:
        client.call_function("types.chain")
    for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
        assert isinstance(error.__cause__, ValueError) and error.__cause__.message == "second"
        first = error.__cause__.__cause__
        assert isinstance(first, KeyError) and "in chain" in first.remote_traceback and first.__cause__ is None
    with pytest.raises(RuntimeError, match="itself"):
        client.call_function("types.loop")


def test_exceptions_keep_their_arguments(client):
    for error in (raised_by(client, "types.raise", "os"), pickle.loads(pickle.dumps(raised_by(client, "types.raise", "os")))):
        assert isinstance(error, FileNotFoundError) and error.args == (errno.ENOENT, "No such file or directory")
        assert (error.errno, error.filename) == (errno.ENOENT, "/no/such/file")
        assert str(error).startswith("FileNotFoundError: [Errno 2]")
    error = raised_by(client, "types.raise", "key")
    assert isinstance(error, KeyError) and error.args == (("a", 1, None, b"b", [1.5, True]),)
    error = raised_by(client, "types.raise", "unicode")
    assert isinstance(error, UnicodeDecodeError) and (error.object, error.reason) == (b"\xff", "invalid start byte")
    error = raised_by(client, "types.raise", "cause").__cause__
    assert isinstance(error, ConnectionError) and error.errno == errno.ECONNREFUSED
    # Arguments that do not cross, and another class of the same name.
    assert raised_by(client, "types.raise", "object").args == ("ValueError: an object",)
    error = raised_by(client, "types.raise", "same name")
    assert isinstance(error, UnicodeError) and error.args == ("mine",)


def test_awaited_call_gets_a_stop_iteration_as_an_error(daemon, client):
    async def main():
        async with AsyncSharedTensorClient(socket=daemon.socket) as calls:
            # It must not end the caller's loops, and a coroutine cannot raise it.
            with pytest.raises(RemoteError, match="StopIteration: 5") as raised:
                await calls.call_function("types.raise", ["stop"])
            assert not isinstance(raised.value, StopIteration)

    asyncio.run(main())


def raised_by(client, name, *args):
    with pytest.raises(RemoteError) as raised:
        client.call_function(name, args)
    return raised.value


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client: client.call_function("types.kind", [1], timeout="soon"), "timeout"),
        (lambda client: client.call_function("types.kind", [1], timeout=0), "timeout"),
        (lambda client: client.call_function("types.kind", 1), "args"),
        (lambda client: client.call_function("types.kind", [], [1]), "kwargs"),
        (lambda client: client.call_function(5), "name"),
        (lambda client: client.list_functions(5), "prefix"),
        (lambda client: client.has_function(None), "name"),
        (lambda client: client.functions[5], "name"),
        (lambda client: SharedTensorClient(allow_pickle="yes"), "allow_pickle"),
        (lambda client: SharedTensorClient(name=5), "name"),
        (lambda client: SharedTensorClient(socket=5), "socket"),
    ],
)
def test_wrong_types_of_arguments_are_named(client, call, field):
    with pytest.raises(InvalidError, match=field) as raised:
        call(client)
    assert raised.value.field == field
