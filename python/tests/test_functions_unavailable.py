"""Daemons and providers that have ended or are stopped, and results that exceed a message."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import numpy as np
import pytest
from functions_common import Program, environment, free_port, program, providing, stop_process

import cotensor
from cotensor import NoDaemonError, TimedOutError, UnsupportedError
from cotensor.async_client import AsyncSharedTensorClient
from cotensor.client import SharedTensorClient
from cotensor.server import main
from cotensor.sharing import TensorSharingManager

FUNCTIONS = """
@provider.share(name="unavailable.long")
def long():
    return ["\\x01" * 60_000] * 50  # 18 MB of JSON

@provider.share(name="unavailable.echo")
def echo(x):
    return x
"""


@pytest.fixture
def provider(daemon):
    with providing(daemon.socket, FUNCTIONS) as running:
        yield running


def test_no_daemon_is_a_connection_error(tmp_path, monkeypatch):
    for connect in (
        lambda: cotensor.connect(tmp_path / "s"),
        lambda: SharedTensorClient(socket=tmp_path / "s", retry_count=0).call_function("f"),
        lambda: SharedTensorClient(socket=tmp_path / "s", retry_count=0).f,
    ):
        with pytest.raises(NoDaemonError, match="no daemon") as raised:
            connect()
        assert isinstance(raised.value, ConnectionError) and not isinstance(raised.value, LookupError)
    assert not SharedTensorClient(socket=tmp_path / "s").ping()


def test_reports_raise_after_the_daemon_ended(tmp_path):
    from conftest import Daemon

    daemon = Daemon(tmp_path)
    store = daemon.connect()
    tensor = store.put("x", np.zeros(3))
    assert store.names() == ["x"] and store.get_stats()["total_tensors"] == 1
    manager = TensorSharingManager(store=store)
    daemon.stop()
    for query in (
        store.names,
        store.get_stats,
        store.get_diagnostics,
        store.get_recommendations,
        store.optimize_memory_usage,
        lambda: "x" in store,
        manager.get_stats,
        manager.get_diagnostics,
    ):
        with pytest.raises(OSError):
            query()
    assert np.array_equal(tensor.numpy(), np.zeros(3)), "leased tensors stay readable"


def test_oversized_result_fails_only_its_call(daemon, provider):
    async def together():
        async with AsyncSharedTensorClient(socket=daemon.socket, timeout=60) as client:
            calls = [client.call_function("unavailable.long")]
            calls += [client.call_function("unavailable.echo", [k]) for k in range(9)]
            return await asyncio.gather(*calls, return_exceptions=True)

    long, *others = asyncio.run(together())
    assert isinstance(long, UnsupportedError) and "tensor" in str(long) and others == list(range(9))
    with SharedTensorClient(socket=daemon.socket, timeout=60) as client:
        with pytest.raises(UnsupportedError, match="tensor"):
            client.call_function("unavailable.echo", [["\x01" * 60_000] * 50])
        text, data = "é" * (10 << 20), bytes(20 << 20)
        assert client.call_function("unavailable.echo", [{"text": text, "data": data}]) == {"text": text, "data": data}


def test_stopped_provider_is_named_and_other_calls_complete(daemon, provider):
    async def together():
        async with AsyncSharedTensorClient(socket=daemon.socket, timeout=60) as client:
            assert await client.call_function("unavailable.echo", [1]) == 1
            stop_process(provider.process.pid)
            other = asyncio.ensure_future(client.call_function("unavailable.echo", [2]))
            with pytest.raises(TimedOutError, match=rf"\[{provider.process.pid}\] did not answer within 0\.0\d+ s"):
                await client.call_function("unavailable.echo", [3], timeout=0.05)
            assert not other.done()
            provider.signal(signal.SIGCONT)
            return await other

    assert asyncio.run(together()) == 2
    with SharedTensorClient(socket=daemon.socket, timeout=60) as client:
        assert client.call_function("unavailable.echo", [1]) == 1
        stop_process(provider.process.pid)
        try:
            with pytest.raises(TimedOutError, match=rf"\[{provider.process.pid}\]") as raised:
                client.call_function("unavailable.echo", [np.ones(5)], timeout=0.05)
        finally:
            provider.signal(signal.SIGCONT)
        assert "daemon" not in str(raised.value)
        assert client.call_function("unavailable.echo", [4]) == 4


def test_call_times_out_while_the_daemon_is_stopped(tmp_path):
    from conftest import Daemon

    daemon = Daemon(tmp_path)
    try:
        stop_process(daemon.info["server"])
        with SharedTensorClient(socket=daemon.socket, timeout=0.1) as client:
            with pytest.raises(TimedOutError, match="daemon did not answer"):
                client.call_function("unavailable.echo", [1])
    finally:
        os.kill(daemon.info["server"], signal.SIGCONT)
        daemon.stop()


def test_daemon_options_are_refused_while_a_daemon_runs(daemon, capsys, tmp_path):
    for options, field in [
        (["--max-memory", "64MiB"], "--max-memory"),
        (["--allow-host", "me"], "--allow-host"),
        (["--token-file", str(tmp_path / "token")], "--token-file"),
        (["--host", "127.0.0.2"], "--host"),
        (["--port", str(free_port())], "--port"),
    ]:
        assert main(["--socket", str(daemon.socket), *options]) == 2
        printed = capsys.readouterr().err
        assert f"error: {field}: the running daemon at" in printed, printed


@pytest.mark.parametrize(("option", "value", "words"), [("--max-memory", "64", "64MiB"), ("--timeout", "soon", "10min")])
def test_values_without_meaning_are_refused(capsys, option, value, words):
    with pytest.raises(SystemExit):
        main([option, value])
    printed = capsys.readouterr().err
    assert f"argument {option}: " in printed and words in printed, printed


ENDS = """
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket={0!r})
@provider.share
def lost(): pass
{1}
"""


def test_exit_without_serving_prints_a_warning(daemon):
    for more, warns in [("", True), ("provider.close()", False), ("provider.start()", False)]:
        with program(ENDS.format(str(daemon.socket), more)) as running:
            out, errors = running.finish()
            assert running.process.returncode == 0 and ("serve()" in errors and "lost" in errors) == warns, errors


def test_module_without_functions_prints_a_warning(daemon, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "cotensor.server", "empty.py", "--socket", str(daemon.socket)]
    # Another rank has another port: only one server listens at a port.
    running = Program("", command=command, cwd=tmp_path, env=environment(RANK="11"))
    assert running.process.stderr is not None
    printed = ""
    while "until SIGINT" not in printed:
        line = running.process.stderr.readline()
        assert line, printed
        printed += line
    assert "empty.py provides no functions" in printed
    os.kill(running.process.pid, signal.SIGTERM)
    running.finish()
