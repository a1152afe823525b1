"""`cotensor-server`: a server as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from functions_common import SERVE, Program, environment, free_port, program, run, until
from server_common import daemon_process, health, is_up, server_folder, serving

import cotensor
from cotensor import NotFoundError
from cotensor.client import SharedTensorClient


@pytest.fixture
def folder() -> Iterator[Path]:
    with server_folder() as path:
        yield path


@pytest.fixture
def module(folder) -> Path:
    return folder / "my_functions.py"


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
