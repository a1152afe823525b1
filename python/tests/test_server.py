"""SharedTensorServer in a program, and the command shared-tensor-server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from conftest import command
from functions_common import free_port, until
from server_common import health, server_folder

import cotensor
from cotensor import ConflictError, InvalidError, NotFoundError
from cotensor.client import SharedTensorClient
from cotensor.provider import SharedTensorProvider
from cotensor.server import SharedTensorServer


@pytest.fixture
def folder() -> Iterator[Path]:
    with server_folder() as path:
        yield path


@pytest.fixture
def module(folder) -> Path:
    return folder / "my_functions.py"


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

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, but not listening
        port = silent.getsockname()[1]
        with pytest.raises(ConflictError, match="not available"):
            SharedTensorServer(port=port, socket=folder / "s").start()
