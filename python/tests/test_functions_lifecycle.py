"""Calls during signals, forks, exits of interpreters and restarts of daemons, and after a client is killed."""

from __future__ import annotations

import signal
from typing import Iterator

import numpy as np
import pytest
from functions_common import Program, program, providing, run, until

from cotensor import IoError
from cotensor.client import SharedTensorClient

FUNCTIONS = """
from cotensor.functions import current_call
started = threading.Event()

@provider.share(name="lifecycle.add")
def add(a, b):
    return a + b

@provider.share(name="lifecycle.wait")
def wait():
    started.set()
    while True:
        check_cancelled()
        time.sleep(0.005)

@provider.share(name="lifecycle.started")
def wait_until_started():
    assert started.wait(60)
    started.clear()

@provider.share(name="lifecycle.ones")
def ones(count):
    return np.ones(count, np.float32)

@provider.share(name="lifecycle.precision")
def precision(digits):
    import decimal
    before = decimal.getcontext().prec
    decimal.getcontext().prec = digits
    return before

@provider.share(name="lifecycle.object", managed=True)
def make():
    return [1, 2]
"""


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS) as running:
        yield running


# -- Ctrl-C ------------------------------------------------------------

INTERRUPTED = """
import signal, sys, threading, time
from cotensor.client import SharedTensorClient
client = SharedTensorClient(socket=sys.argv[1], timeout=None)
assert client.call_function("lifecycle.add", [1, 2]) == 3
print("calling", flush=True)
try:
    {call}
except KeyboardInterrupt:
    assert client.call_function("lifecycle.add", [2, 3]) == 5
    print("usable", flush=True)
"""

WAITS = {
    "call": 'client.call_function("lifecycle.wait")',
    "attribute": "client.functions.lifecycle.wait()",
    "task": (
        "from cotensor.async_client import AsyncSharedTensorClient as A; a = A(socket=sys.argv[1]); "
        'a.wait_for_task(a.submit_task("lifecycle.wait", timeout=20))'
    ),
    "result": (
        "from cotensor.async_client import AsyncSharedTensorClient as A; a = A(socket=sys.argv[1]); "
        'a.get_task_result(a.submit_task("lifecycle.wait", timeout=20))'
    ),
    "asyncio": (
        "import asyncio; from cotensor.async_client import AsyncSharedTensorClient as A; "
        'asyncio.run(A(socket=sys.argv[1]).call_function("lifecycle.wait", timeout=20))'
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_and_keeps_the_client_usable(daemon, provider, wait):
    with program(INTERRUPTED.format(call=WAITS[wait]), str(daemon.socket)) as calling:
        assert calling.line() == "calling"
        with SharedTensorClient(socket=daemon.socket) as client:
            client.call_function("lifecycle.started")
        calling.signal(signal.SIGINT)
        assert calling.line() == "usable"
        calling.finish()
        assert calling.process.returncode == 0


# -- clients that are killed -------------------------------------------


def test_killed_client_leaves_no_memory(daemon, provider):
    code = """
import sys, time
from cotensor.client import SharedTensorClient
client = SharedTensorClient(socket=sys.argv[1])
held = client.call_function("lifecycle.ones", [17_000_000])  # more than connections carry
objects = [client.call_function("lifecycle.object") for _ in range(3)]
print("holding", flush=True)
time.sleep(1000)
"""
    with daemon.connect() as store:
        before = store.get_stats()["memory_usage_bytes"]
        with program(code, str(daemon.socket)) as holding:
            assert holding.line() == "holding"
            assert store.get_stats()["memory_usage_bytes"] >= before + 68_000_000
            holding.signal(signal.SIGKILL)
            holding.finish()
        until(lambda: store.get_stats()["memory_usage_bytes"] <= before)


def test_context_variables_do_not_reach_the_next_call(daemon, provider):
    with SharedTensorClient(socket=daemon.socket) as client:
        assert [client.call_function("lifecycle.precision", [7]) for _ in range(20)] == [28] * 20


# -- forks -------------------------------------------------------------


def test_forked_child_connects_clients_again(daemon, provider):
    out = run(
        """
import os, sys
from cotensor.client import SharedTensorClient
from cotensor.async_client import AsyncSharedTensorClient
import asyncio
client = SharedTensorClient(socket=sys.argv[1])
aclient = AsyncSharedTensorClient(socket=sys.argv[1])
assert client.call_function("lifecycle.add", [1, 2]) == 3
assert asyncio.run(aclient.call_function("lifecycle.add", [1, 2])) == 3
remote = client.call_function("lifecycle.object")
child = os.fork()
if child == 0:
    try:
        assert client.call_function("lifecycle.add", [3, 4]) == 7
        assert asyncio.run(aclient.call_function("lifecycle.add", [3, 4])) == 7
        try:
            remote.__len__
        except AttributeError:
            pass
        try:
            remote.call_method("append", [1])
        except RuntimeError as error:
            assert "parent process" in str(error), error
        else:
            os._exit(3)
        sys.stdout.flush()
        sys.exit(0)
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        import traceback; traceback.print_exc()
        os._exit(4)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
# The parent's references stay valid after the child's end.
remote.append(3)
assert client.call_function("lifecycle.add", [5, 6]) == 11
print("done")
""",
        str(daemon.socket),
    )
    assert out == "done\n"


def test_lock_of_another_thread_is_free_in_a_forked_child(tmp_path):
    out = run(
        """
import os, signal, socket, sys, threading
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.client import SharedTensorClient
silent = socket.socket(socket.AF_UNIX)
silent.bind(sys.argv[1])
silent.listen()
clients = [kind(socket=sys.argv[1], timeout=None) for kind in (SharedTensorClient, AsyncSharedTensorClient)]
connections = []
for client in clients:
    # The thread has the client's lock until the daemon answers.
    threading.Thread(target=client.ping, daemon=True).start()
    connections.append(silent.accept())
child = os.fork()
if child == 0:
    signal.alarm(60)
    for client in clients:
        client.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
print("the child ends" if status == 0 else f"the child hangs: {status}", flush=True)
os._exit(0)
""",
        str(tmp_path / "silent.sock"),
    )
    assert out == "the child ends\n"


def test_parents_provider_raises_in_forked_child(daemon):
    out = run(
        """
import os, sys
from cotensor.provider import SharedTensorProvider
from cotensor.client import SharedTensorClient
provider = SharedTensorProvider(socket=sys.argv[1], execution_mode="server")
@provider.share(name="forked.add")
def add(a, b):
    return a + b
child = os.fork()
if child == 0:
    try:
        provider.share(name="forked.more")(add)
    except RuntimeError as error:
        assert "parent process" in str(error), error
    else:
        os._exit(3)
    # The child can call its parent's functions like any other process.
    with SharedTensorClient(socket=sys.argv[1]) as client:
        assert client.call_function("forked.add", [1, 2]) == 3
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
with SharedTensorClient(socket=sys.argv[1]) as client:
    assert client.call_function("forked.add", [1, 2]) == 3
print("done")
""",
        str(daemon.socket),
    )
    assert out == "done\n"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(daemon, provider, tmp_path, method):
    script = tmp_path / "many.py"
    script.write_text(
        f"""
import multiprocessing, sys
from cotensor.client import SharedTensorClient
client = SharedTensorClient(socket={str(daemon.socket)!r})

def work(k):
    return client.call_function("lifecycle.add", [k, 1])

if __name__ == "__main__":
    assert work(1) == 2
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map(work, range(6)) == list(range(1, 7))
    print("done")
"""
    )
    import sys

    assert run("", command=[sys.executable, str(script)]) == "done\n"


# -- exits of interpreters ---------------------------------------------

ENDING = """
import sys, threading, time
from cotensor.functions import lifecycle
from cotensor.provider import SharedTensorProvider
lifecycle.INTERRUPT_TIMEOUT = 0.1
from cotensor.client import SharedTensorClient
provider = SharedTensorProvider(socket=sys.argv[1], execution_mode="server", workers=4)
started = threading.Event()

@provider.share(name="ending.{name}")
def function():
    started.set()
    {body}

client = SharedTensorClient(socket=sys.argv[1], timeout=None)
def call():
    try:
        client.call_function("ending.{name}")
    except BaseException as error:
        pass
threading.Thread(target=call, daemon=True).start()
started.wait()
print("ending", flush=True)
{end}
"""

BODIES = {
    "sleeping": "time.sleep(1000)",
    "busy": "\n    while True: pass",
    "stubborn": "\n    while True:\n        try:\n            time.sleep(0.001)\n        except BaseException: pass",
    "polling": "\n    while True: time.sleep(0.0001)",
    "short": "time.sleep(0.05)",
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('end')"], ids=["falls off", "exits", "raises"])
def test_interpreter_exits_while_functions_run(daemon, body, end):
    code = ENDING.format(name=body, body=BODIES[body], end=end)
    with program(code, str(daemon.socket)) as ending:
        assert ending.line() == "ending"
        _, errors = ending.finish()
        wanted = {"": 0, "sys.exit(3)": 3}.get(end, 1)
        assert ending.process.returncode == wanted, (ending.process.returncode, errors)
        assert "Fatal" not in errors and "panicked" not in errors


def test_interpreter_exits_with_open_clients_and_providers(daemon, provider):
    out = run(
        """
import asyncio, sys, threading
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.async_provider import AsyncSharedTensorProvider
running, all_running = [], threading.Event()
provider = AsyncSharedTensorProvider(socket=sys.argv[1])
@provider.share(name="open.never")
async def never():
    running.append(1)
    if len(running) == 10:
        all_running.set()
    await asyncio.Event().wait()
client = AsyncSharedTensorClient(socket=sys.argv[1], timeout=None)
async def main():
    waits = [asyncio.ensure_future(client.call_function("open.never")) for _ in range(10)]
    await asyncio.get_running_loop().run_in_executor(None, all_running.wait, 60)
    for wait in waits:
        wait.cancel()
asyncio.run(main())
task = client.submit_task("open.never")
held = client.call_function("lifecycle.object"), client.call_function("lifecycle.ones", [10])
print("done")
""",
        str(daemon.socket),
    )
    assert out == "done\n"


def test_client_that_fails_to_close_keeps_no_other_open(daemon):
    out = run(
        """
import sys
from cotensor.client import SharedTensorClient
class Closing(SharedTensorClient):
    def close(self):
        super().close()
        print("closed")
class Failing(SharedTensorClient):
    def ending(self):
        raise LookupError("ending")
    def close(self):
        super().close()
        raise OSError("closing")
clients = [kind(socket=sys.argv[1]) for kind in (Closing, Failing, Closing)]
assert all(client.ping() for client in clients)
""",
        str(daemon.socket),
    )
    assert out == "closed\nclosed\n"


# -- daemons that end --------------------------------------------------


def test_provider_registers_with_the_next_daemon(tmp_path):
    import tempfile
    from pathlib import Path

    from conftest import Daemon

    with tempfile.TemporaryDirectory(prefix="cot-") as folder:
        first = Daemon(Path(folder))
        try:
            with providing(first.socket, FUNCTIONS):
                with SharedTensorClient(socket=first.socket, retry_count=0) as client:
                    assert client.call_function("lifecycle.add", [1, 1]) == 2
                first.stop()
                with SharedTensorClient(socket=first.socket, retry_count=0) as client:
                    assert not client.ping()
                second = Daemon(Path(folder))
                try:
                    with SharedTensorClient(socket=second.socket) as client:
                        until(lambda: client.has_function("lifecycle.add") and client.has_function("lifecycle.ones"))
                        x = client.call_function("lifecycle.ones", [4])
                        assert np.array_equal(x, np.ones(4))
                finally:
                    second.stop()
        finally:
            first.stop()


def test_call_that_may_have_run_is_not_repeated(daemon):
    code = f"""
import os, sys
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket={str(daemon.socket)!r}, execution_mode="server")
@provider.share(name="once.die")
def die():
    print("ran", flush=True)
    os._exit(9)
print("ready", flush=True)
provider.serve()
"""
    with program(code) as once:
        assert once.line() == "ready"
        with SharedTensorClient(socket=daemon.socket, retry_count=3) as client, pytest.raises(IoError):
            client.call_function("once.die")
        out, _ = once.finish()
        assert out == "ran\n"
