"""SharedTensorServer in a program, and the command shared-tensor-server."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from conftest import command
from functions_common import SERVE, Program, environment, free_port, program, run, stop_daemons, until

import cotensor
from cotensor import ConflictError, InvalidError, NotFoundError
from cotensor.client import SharedTensorClient
from cotensor.provider import SharedTensorProvider
from cotensor.server import SharedTensorServer

MODULE = """
import os
import numpy as np
from cotensor.provider import SharedTensorProvider

provider = SharedTensorProvider()

@provider.share(name="add_numbers")
def add_numbers(a, b):
    return a + b

@provider.share(name="mode")
def mode():
    return provider.execution_mode, os.getpid()

@provider.share(cache=True)
def stamp(x, made=[]):
    made.append(x)
    return len(made)

@provider.share
def sleepy():
    import time
    print("sleeping", flush=True)
    while True:
        time.sleep(0.01)

if __name__ == "__main__":
    provider.serve()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets. The daemons in it end with the test."""
    with tempfile.TemporaryDirectory(prefix="cot-") as name:
        yield Path(name)
        stop_daemons(Path(name))


@pytest.fixture
def module(folder) -> Path:
    path = folder / "my_functions.py"
    path.write_text(MODULE)
    return path


def serving(folder: Path, *arguments: str, **more: str) -> Program:
    """Starts the command, with sockets in `folder`."""
    command = [sys.executable, "-m", "cotensor.server", *arguments]
    folders = {"COTENSOR_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    return Program("", command=command, cwd=folder, env=environment(**folders, **more))


def health(port: int) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        return json.load(answer)


def daemon_process(port: int) -> int:
    """The process id of the daemon with this HTTP port."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(health(port)["socket"])
        return struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def is_up(port: int) -> bool:
    try:
        return health(port)["status"] == "ok"
    except (urllib.error.URLError, ConnectionError):
        return False


# -- in a program ------------------------------------------------------


def test_server_in_this_process(folder):
    server = SharedTensorServer(port=0, socket=folder / "s", max_workers=2)

    @server.share(name="mine")
    def mine(x):
        return x * 2

    assert not server.running and "not running" in repr(server)
    with server:
        assert server.running and health(server.port)["socket"] == server.socket
        server.share(name="later")(lambda: "later")
        assert server.list_functions() == ["later", "mine"]
        with SharedTensorClient(server_port=server.port) as client:
            assert client.mine(3) == 6 and client.later() == "later"
            x = np.arange(5)
            assert np.array_equal(client.mine(x), x * 2)
        with pytest.raises(ConflictError, match="already runs"):
            server.start()
        with pytest.raises(ConflictError, match="a server already runs at port"):
            SharedTensorServer(port=server.port, socket=folder / "s").start()
    server.stop()
    with pytest.raises(ConflictError, match="stopped"):
        server.start()
    assert mine(4) == 8


def test_modules_are_loaded_by_file(folder, module):
    with SharedTensorServer(port=0, socket=folder / "s") as server:
        loaded = server.load(str(module))
        assert loaded.add_numbers(1, 2) == 3
        with SharedTensorClient(server_port=server.port) as client:
            assert client.call_function("add_numbers", [10, 20]) == 30
            assert client.call_function("mode") == ("server", os.getpid())
            assert [client.stamp(1), client.stamp(1), client.stamp(2)] == [1, 1, 2]
        assert "__SHARED_TENSOR_SERVER_MODE__" not in os.environ
        with pytest.raises(NotFoundError, match="no module"):
            server.load("no_such_module_at_all")
        with pytest.raises(NotFoundError, match="no file"):
            server.load(str(folder / "missing.py"))


def test_modules_exchange_objects(folder):
    make = "import fractions\nprovider.share(name='make', managed=True)(lambda: [fractions.Fraction(1, 3)])\n"
    for name, functions in (("makes", make), ("takes", "provider.share(name='take')(lambda values: str(values[0]))\n")):
        head = "from cotensor.provider import SharedTensorProvider\nprovider = SharedTensorProvider()\n"
        (folder / f"{name}.py").write_text(head + functions)
    with SharedTensorServer(port=0, socket=folder / "s") as server:
        server.load(str(folder / "makes.py"))
        server.load(str(folder / "takes.py"))
        with SharedTensorClient(server_port=server.port) as client:
            assert client.call_function("take", [client.call_function("make")]) == "1/3"


def test_disabled_cache_runs_every_call(folder, module):
    with SharedTensorServer(port=0, socket=folder / "s", enable_cache=False) as server:
        server.load(str(module))
        with SharedTensorClient(server_port=server.port) as client:
            assert [client.stamp(1), client.stamp(1)] == [1, 2]


def test_server_time_limit_applies_to_functions_without_one(folder, module):
    with SharedTensorServer(port=0, socket=folder / "s", timeout=0.1) as server:
        started, go_on = threading.Event(), threading.Event()
        server.share(name="own_limit", timeout=60)(lambda: started.set() or go_on.wait(60))
        server.share(name="servers_limit")(lambda: go_on.wait(60))
        with SharedTensorClient(server_port=server.port, timeout=None) as client, ThreadPoolExecutor(1) as threads:
            running = threads.submit(client.own_limit)
            assert started.wait(60)
            with pytest.raises(TimeoutError):
                client.servers_limit()
            # This call has already exceeded the server's limit.
            go_on.set()
            assert running.result() is True


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"port": 70000}, "port"),
        ({"port": "2537"}, "port"),
        ({"host": "no.such.host"}, "host"),
        ({"max_workers": 0}, "max_workers"),
        ({"timeout": -1}, "timeout"),
        ({"tensors": "x"}, "tensors"),
    ],
)
def test_wrong_options_are_named(options, field):
    with pytest.raises(InvalidError) as raised:
        SharedTensorServer(**options)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"server_port": -1}, "server_port"),
        ({"execution_mode": "remote"}, "execution_mode"),
        ({"workers": 0}, "workers"),
        ({"workers": -1}, "workers"),
        ({"tasks_max": 1.5}, "tasks_max"),
        ({"timeout": 0}, "timeout"),
        ({"tensors": "x"}, "tensors"),
    ],
)
def test_wrong_options_of_providers_are_named(options, field):
    with pytest.raises(InvalidError) as raised:
        SharedTensorProvider(**options)
    assert raised.value.field == field
    provider = SharedTensorProvider(execution_mode="local")
    with pytest.raises(InvalidError, match="name"):
        provider.share(name="")


def test_url_is_set_while_the_server_listens(folder, monkeypatch):
    server = SharedTensorServer(port=free_port(), socket=folder / "s")
    assert server.url is None
    with server:
        with urllib.request.urlopen(f"{server.url}/health", timeout=10) as answer:
            assert answer.status == 200
        # A server of another rank uses the daemon at the socket, with the HTTP that it has.
        monkeypatch.setenv("RANK", "7")
        with SharedTensorServer(socket=folder / "s") as joined:
            assert joined.socket == server.socket and (joined.url, joined.token_file) == (server.url, server.token_file)
        elsewhere = SharedTensorServer(port=free_port(), socket=folder / "s")
        with pytest.raises(ConflictError, match="does not have this option") as raised:
            elsewhere.start()
        assert raised.value.field == "port" and elsewhere.url is None


def test_server_joins_the_daemon_of_its_port(folder, monkeypatch):
    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("COTENSOR_SOCKET", raising=False)
    port = free_port()
    socket_path = folder / f"cotensor-{port}.sock"
    running = subprocess.Popen([*command(), "serve", "--socket", str(socket_path)], stderr=subprocess.DEVNULL)
    try:
        until(socket_path.exists)
        with SharedTensorServer(port=port) as joined:
            assert joined.url == f"http://127.0.0.1:{port}" and joined.socket == str(socket_path)
            joined.share(name="by.port")(lambda: 7)
            with SharedTensorClient(server_port=port) as client:
                assert client.call_function("by.port") == 7
    finally:
        running.terminate()
        running.wait(60)


def test_port_depends_on_the_rank(monkeypatch):
    monkeypatch.delenv("GPUS_PER_NODE", raising=False)
    monkeypatch.setenv("RANK", "3")
    assert SharedTensorServer().port == SharedTensorClient().server_port == 2540
    assert SharedTensorProvider(execution_mode="local").server_port == 2540
    assert SharedTensorClient(server_port=9000).server_port == 9000
    monkeypatch.setenv("GPUS_PER_NODE", "8")
    assert SharedTensorServer().port == 2537, "one daemon serves all devices"
    monkeypatch.setenv("RANK", "x")
    monkeypatch.delenv("GPUS_PER_NODE")
    with pytest.raises(InvalidError, match="RANK"):
        SharedTensorClient()


def test_port_of_another_program_is_refused(folder, monkeypatch):
    import http.server
    import threading

    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("COTENSOR_SOCKET", raising=False)
    monkeypatch.delenv("COTENSOR_AUTOSTART", raising=False)
    other = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        port = other.server_port
        with pytest.raises(ConflictError, match="not available") as raised:
            SharedTensorServer(port=port).start()
        assert raised.value.field == "port"
    finally:
        other.shutdown()
        other.server_close()


def test_stranger_at_a_named_port_is_not_believed(folder, monkeypatch):
    import http.server
    import threading

    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("COTENSOR_SOCKET", raising=False)
    monkeypatch.setenv("COTENSOR_AUTOSTART", "1")
    place = folder / "elsewhere" / "precious.sock"

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"status": "ok", "version": "1", "protocol": 3, "socket": str(place)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    other = http.server.HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        port = other.server_port
        with (
            pytest.raises(ConflictError, match="not a daemon of this user"),
            SharedTensorClient(server_port=port, retry_count=0) as client,
        ):
            client.add(1, 2)
        # A provider starts the daemon at the own socket of the port, whatever runs at the port. It opens no port.
        with SharedTensorProvider(server_port=port) as provider:
            provider.share(name="add")(lambda a, b: a + b)
            assert provider.store.socket == folder / f"cotensor-{port}.sock"
            with SharedTensorClient(server_port=port, retry_count=0) as client:
                assert client.add(1, 2) == 3
        assert not place.parent.exists()
    finally:
        other.shutdown()
        other.server_close()


def test_default_daemon_is_the_same_for_all(folder, monkeypatch):
    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("COTENSOR_AUTOSTART", "1")
    for name in ("COTENSOR_SOCKET", "RANK", "GPUS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    with cotensor.connect() as store, SharedTensorProvider() as provider, SharedTensorClient() as client:
        provider.share(name="add")(lambda a, b: a + b)
        assert client.add(1, 2) == 3
        assert store.socket == provider.store.socket == client.store.socket == folder / "cotensor.sock"
        assert store.epoch == provider.store.epoch == client.store.epoch
        shown = [*command(), "status", "--json", "--socket", str(store.socket)]
        assert json.loads(subprocess.check_output(shown, timeout=60))["http"] is None, "TCP is off"


def test_bound_port_is_refused(folder):
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, but not listening
        port = silent.getsockname()[1]
        with pytest.raises(ConflictError, match="not available"):
            SharedTensorServer(port=port, socket=folder / "s").start()


# -- as a command ------------------------------------------------------


def test_command_serves_a_file_until_sigterm(folder, module):
    port = free_port()
    server = serving(folder, "my_functions.py", "--port", str(port), "--workers", "2")
    try:
        until(lambda: is_up(port))
        with SharedTensorClient(server_port=port, retry_count=8) as client:
            assert client.call_function("add_numbers", [10, 20]) == 30
            mode, pid = client.call_function("mode")
            assert mode == "server" and pid == server.process.pid
            names = [each["name"] for each in client.list_functions()]
            assert names == ["add_numbers", "mode", f"server/{port}", "sleepy", "stamp"]
        assert daemon_process(port) != server.process.pid
        second = serving(folder, "my_functions.py", "--port", str(port))
        out, errors = second.finish()
        assert second.process.returncode == 2 and f"a server already runs at port {port}" in errors
        server.signal(signal.SIGTERM)
        out, errors = server.finish()
        assert server.process.returncode == 0, errors
        assert "4 functions: add_numbers, mode, sleepy, stamp" in errors
        assert is_up(port), "the daemon has the tensors of other programs"
        with SharedTensorClient(server_port=port, retry_count=0) as client, pytest.raises(NotFoundError):
            client.call_function("add_numbers", [1, 2])
    finally:
        server.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_ends_while_functions_run(folder, module, number):
    port = free_port()
    server = serving(folder, "my_functions", "--port", str(port))
    try:
        until(lambda: is_up(port))
        code = f"""
from cotensor.client import SharedTensorClient
import cotensor
client = SharedTensorClient(server_port={port}, retry_count=8, timeout=None)
client.call_function("add_numbers", [1, 1])
print("calling", flush=True)
try:
    client.sleepy()
except (OSError, cotensor.errors.CancelledError) as error:
    print("ended")
"""
        with program(code, env=environment(COTENSOR_RUNTIME_DIR=str(folder))) as calling:
            assert calling.line() == "calling"
            assert server.line() == "sleeping"
            server.signal(number)
            assert calling.line() == "ended"
        out, errors = server.finish()
        assert server.process.returncode == 0, errors
    finally:
        server.end()


def test_command_ends_while_modules_load(folder):
    # Python handles signals between the short sleeps. A signal just before one long sleep would be handled only after it.
    (folder / "slow.py").write_text("import time; print('loading', flush=True); [time.sleep(0.01) for _ in range(100000)]")
    server = serving(folder, "slow.py", "--port", str(free_port()))
    try:
        assert server.line() == "loading"
        server.signal(signal.SIGTERM)
        _, errors = server.finish()
        assert server.process.returncode == 0, errors
    finally:
        server.end()


def test_command_without_modules_starts_a_daemon(folder):
    port = free_port()
    server = serving(folder, "--port", str(port))
    try:
        until(lambda: is_up(port))
        provider_code = f"""
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(server_port={port})
@provider.share(name="beside")
def beside():
    return str(provider.store.socket)
"""
        with program(provider_code + SERVE, env=environment(COTENSOR_RUNTIME_DIR=str(folder))) as beside:
            assert beside.line() == "ready"
            with SharedTensorClient(server_port=port, retry_count=0) as client:
                assert client.beside() == str(folder / f"cotensor-{port}.sock")
            beside.signal(signal.SIGINT)
            beside.finish()
            assert beside.process.returncode == 0
    finally:
        server.end()


def test_command_reports_errors(folder):
    for arguments, code, message in (
        (["missing.py"], 2, "no file"),
        (["no_such_module"], 2, "no module"),
        (["--port", "99999"], 2, "port"),
        (["--workers", "0"], 2, "--workers: pass an integer from 1"),
        (["--frobnicate"], 2, "unrecognized"),
        (["--host", "no.such.host"], 2, "host"),
    ):
        more = [] if "--port" in arguments else ["--port", str(free_port())]
        wrong = serving(folder, *arguments, *more)
        _, errors = wrong.finish()
        assert wrong.process.returncode == code and message in errors, (arguments, errors)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_http_needs_the_token(folder, host):
    port = free_port()
    server = serving(folder, "--host", host, "--port", str(port))
    try:

        def refused(path: str) -> bool:
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10)
            return raised.value.code == 401

        until(lambda: is_up(port))
        assert set(health(port)) == {"status", "version", "protocol", "socket"}
        assert refused("/metrics") and refused("/tensors/x")
        tokens = sorted(path for path in (folder / "state" / "cotensor").iterdir() if "token" in path.name)
        # The second one is good below /v1 only.
        assert len(tokens) == 2 and all(token.stat().st_mode & 0o77 == 0 for token in tokens)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
        request.add_header("Authorization", f"Bearer {tokens[0].read_text().strip()}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert b"cotensor_info" in answer.read()
        # Clients of this package use the socket and need no token.
        out = run(
            f"""
from cotensor.client import SharedTensorClient
print(SharedTensorClient(server_port={port}).ping())
""",
            env=environment(COTENSOR_RUNTIME_DIR=str(folder)),
        )
        assert out == "True\n"
        server.signal(signal.SIGTERM)
        _, errors = server.finish()
        assert "token in" in errors
    finally:
        server.end()


def test_each_rank_has_a_server(folder, monkeypatch):
    script = folder / "rank.py"
    script.write_text(
        """
import os
from cotensor.provider import SharedTensorProvider
rank = int(os.getenv("RANK", 0))
provider = SharedTensorProvider(server_port=int(os.environ["FIRST"]) + rank)
@provider.share(name="rank")
def of():
    return rank
print("ready", flush=True)
provider.serve()
"""
    )
    first = free_port()
    monkeypatch.setenv("COTENSOR_RUNTIME_DIR", str(folder))
    monkeypatch.delenv("COTENSOR_SOCKET", raising=False)
    programs = []
    try:
        for rank in (0, 1):
            env = environment(COTENSOR_RUNTIME_DIR=str(folder), COTENSOR_AUTOSTART="1", RANK=str(rank), FIRST=str(first))
            programs.append(Program("", command=[sys.executable, str(script)], env=env))
            assert programs[-1].line() == "ready"
        for rank in (0, 1):
            with SharedTensorClient(server_port=first + rank) as client:
                assert client.call_function("rank") == rank
    finally:
        for each in programs:
            each.end()


def test_provider_starts_the_daemon_if_none_runs(folder):
    port = free_port()
    code = f"""
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(server_port={port})
@provider.share
def add(a, b):
    return a + b
"""
    socket_path = folder / f"cotensor-{port}.sock"
    with program(code + SERVE, env=environment(COTENSOR_RUNTIME_DIR=str(folder), COTENSOR_AUTOSTART="1")) as first:
        assert first.line() == "ready"
        with cotensor.connect(socket_path, autostart=False) as store:
            store.put("x", np.arange(5))
            with SharedTensorClient(socket=socket_path) as client:
                assert client.add(1, 2) == 3
            first.signal(signal.SIGTERM)
            first.finish()
            assert first.process.returncode == 0 and not is_up(port)
            assert store.get("x").numpy().tolist() == [0, 1, 2, 3, 4], "tensors outlive the provider"


def test_client_retries_until_the_server_has_started(folder, module):
    port = free_port()
    code = f"""
from cotensor.client import SharedTensorClient
client = SharedTensorClient(server_port={port}, retry_count=9)
print("calling", flush=True)
print(client.call_function("add_numbers", [1, 2]))
"""
    with program(code, env=environment(COTENSOR_RUNTIME_DIR=str(folder))) as calling:
        assert calling.line() == "calling"
        server = serving(folder, "my_functions.py", "--port", str(port))
        try:
            assert calling.line() == "3"
        finally:
            server.signal(signal.SIGTERM)
            server.finish()
            server.end()


def test_server_script_is_installed():
    script = Path(sys.executable).parent / "shared-tensor-server"
    if not script.exists():
        pytest.skip("this copy of the package was installed without its scripts")
    ended = subprocess.run([str(script), "--version"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout.startswith("shared-tensor-server ")
