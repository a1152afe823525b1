"""Options of functions and providers: caches, concurrency, managed objects, pickles, modes."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from functions_common import program, providing, run, until
from functions_provided import exiting_provider

from cotensor import (
    ConflictError,
    InvalidError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    errors,
)
from cotensor.client import SharedTensorClient
from cotensor.functions import RemoteObject
from cotensor.provider import SharedTensorProvider

# -- options ---------------------------------------------


def test_results_are_cached_by_content_on_request(client):
    x = np.arange(1000, dtype=np.float32)
    first = client.call_function("cached", [x])
    again = client.call_function("cached", [x.copy()])
    other = client.call_function("cached", [x + 1])
    assert np.array_equal(first, again) and np.array_equal(other, x + 2)
    assert client.call_function("ran", ["cached"]) == 2
    for value in (1, 2, 1):
        assert client.call_function("cached_one", [value]) == value
    assert client.call_function("ran", ["one"]) == 3, "the cache keeps one result"


def test_equal_calls_at_the_same_time_run_once(daemon, client):
    results, begun = [], threading.Barrier(6)

    def call():
        begun.wait(60)
        results.append(client.call_function("shared_run", [5]))

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    until(lambda: client.call_function("ran", ["shared_run"]) == 1)
    # Nothing shows how many calls wait for a run. A hundred calls later, the five have come.
    for _ in range(100):
        client.call_function("ran", ["shared_run"])
    client.call_function("release")
    for thread in threads:
        thread.join(60)
    assert results == [5] * 5 and client.call_function("ran", ["shared_run"]) == 1


def test_serialized_functions_run_one_at_a_time(client):
    most = []
    threads = [threading.Thread(target=lambda: most.append(client.call_function("alone"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8


def test_current_call_has_function_and_client(client):
    function, caller = client.call_function("current")
    assert function == "current" and str(os.getpid()) in caller


def test_list_functions_filters_by_prefix(client):
    by_name = {each["name"]: each for each in client.list_functions()}
    assert {"add", "identity", "counter"} <= set(by_name)
    assert by_name["add"]["summary"] == "Adds numbers. add(a, b, *, c=0)"
    assert [each["name"] for each in client.list_functions("cached")] == ["cached", "cached_one"]
    assert client.ping()


# -- objects ---------------------------------------------


def test_managed_result_is_a_remote_object(client):
    with client.call_function("counter", [5]) as counter:
        assert isinstance(counter, RemoteObject)
        assert counter.more() == 6 and counter.more(by=4) == 10
        assert counter(3) == 30
        assert client.call_function("count_of", [counter]) == (10, "Counter"), "the provider's function gets the object itself"
        assert client.call_function("count_of", kwargs={"counter": counter}) == (10, "Counter")
        with pytest.raises(KeyError, match="not there"):
            counter.fail()
        with pytest.raises(AttributeError, match="no attribute 'missing'"):
            counter.missing()
        with pytest.raises(AttributeError):
            counter._hidden()
        with pytest.raises(errors.RemoteError, match="no method"):
            counter.call_method("_hidden")
    with pytest.raises(ConflictError, match="already released"):
        counter.more()
    with pytest.raises(ConflictError, match="already released"):
        counter.release()


def test_remote_objects_are_distinct(client):
    one, two = client.call_function("counter", [1]), client.call_function("counter", [2])
    assert one.id != two.id and one.epoch == two.epoch
    one.release()
    assert two.more() == 3
    assert "RemoteObject" in repr(two) and "released" in repr(one)


def test_remote_object_is_stale_after_its_provider_ended(daemon, client):
    with program(exiting_provider(daemon.socket)) as running:
        assert running.line() == "ready"
        with SharedTensorClient(socket=daemon.socket, retry_count=0) as mine:
            made = mine.call_function("exiting.object")
            assert made.__call__ is not None
            # Functions of another provider refuse the reference.
            with pytest.raises(ConflictError, match="belongs to"):
                mine.call_function("identity", [made])
            # So does another client's connection.
            with pytest.raises(ConflictError):
                client.call_function("exiting.object", [made])
            running.signal(signal.SIGKILL)
            running.finish()
            until(lambda: not mine.has_function("exiting.object"))
            with program(exiting_provider(daemon.socket)) as again:
                assert again.line() == "ready"
                with pytest.raises(ConflictError, match="ended or restarted"):
                    made.call_method("__len__")
                fresh = mine.call_function("exiting.object")
                assert fresh.epoch != made.epoch


# -- pickles ---------------------------------------------

PICKLED = """
@provider.share(name="{0}.set")
def make():
    return {{1, 2, 3}}
@provider.share(name="{0}.identity")
def same(x):
    return x
"""


def test_pickles_need_permission_of_both_sides(daemon):
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
            with pytest.raises(RefusedError, match="can run any code"):
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


def test_client_mode_calls_the_provider(daemon, provider):
    here = SharedTensorProvider(socket=daemon.socket, execution_mode="client")

    @here.share
    def add(a, b, *, c=0):
        raise AssertionError("it must run in the provider")

    with here:
        assert add(1, 2, c=3) == 6
        assert add.__name__ == "add"


def test_server_mode_refuses_used_names_and_auto_mode_skips_them(daemon, provider, caplog):
    with SharedTensorProvider(socket=daemon.socket, execution_mode="server") as here:
        with pytest.raises(ConflictError, match="add"):
            here.share(name="add")(lambda: None)
        here.share(name="here.once")(lambda: 1)
        with pytest.raises(ConflictError, match="already"):
            here.share(name="here.once")(abs)
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


def test_removed_functions_are_not_found(daemon):
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


def test_closed_client_raises(daemon, provider):
    client = SharedTensorClient(socket=daemon.socket)
    assert client.add(1, 1) == 2
    client.close()
    client.close()
    with pytest.raises(ConflictError, match="closed"):
        client.add(1, 1)
    assert "closed" in repr(client)


def test_calls_leave_no_tensors(daemon, provider):
    with daemon.connect() as store:
        for _ in range(3):
            with SharedTensorClient(socket=daemon.socket) as client:
                x = np.ones(100_000, np.float32)
                for _ in range(5):
                    client.call_function("scale", [x, 2])
                client.call_function("counter")
        # The memory of results is freed when their clients are closed.
        until(lambda: not [name for name in store.names() if "scale" in name or "arguments" in name])


def test_public_classes_have_long_docstrings():
    for documented in (
        SharedTensorProvider,
        SharedTensorProvider.share,
        SharedTensorClient,
        SharedTensorClient.call_function,
    ):
        assert documented.__doc__ and len(documented.__doc__) > 200


def test_run_helper_reports_failures():
    with pytest.raises(AssertionError):
        run("raise SystemExit(3)")
