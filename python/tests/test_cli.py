"""The command line as ``python -m cotensor`` and as the installed script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest
from conftest import Daemon, serving
from functions_common import environment, providing, until

import cotensor

COMMAND = [sys.executable, "-m", "cotensor"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cot-") as name:
        yield Path(name)


def cli(*arguments: str, socket: object = None, code: int = 0, command: list[str] = COMMAND) -> str:
    """Runs the command, which must end with `code`. Returns its output, or its errors if `code` is not 0."""
    env = environment(COTENSOR_SOCKET=str(socket)) if socket else environment()
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, env=env, timeout=120)
    assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout if code == 0 else ended.stderr


def test_version_and_help_are_printed():
    assert cli("--version").split() == ["cotensor", cotensor.__version__]
    assert "Usage: cotensor" in cli("--help")
    assert "--listen" in cli("serve", "--help")
    assert cli("nonsense", code=2)


def test_script_equals_python_m(tmp_path):
    script = Path(sys.executable).parent / "cotensor"
    if not script.exists():
        pytest.skip("this copy of the package was installed without its scripts")
    assert cli("--version", command=[str(script)]) == cli("--version")
    assert cli("ls", socket=tmp_path / "none", code=1, command=[str(script)]) == cli(
        "ls", socket=tmp_path / "none", code=1
    )


def test_put_ls_get_rm(daemon, folder):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(folder / "x.npy", x)
    cli("put", "cli/x", str(folder / "x.npy"), socket=daemon.socket)
    with daemon.connect() as store:
        assert np.array_equal(store.get("cli/x").numpy(), x)
    assert "cli/x" in cli("ls", socket=daemon.socket)
    listed = json.loads(cli("ls", "--json", socket=daemon.socket))
    assert "cli/x" in json.dumps(listed)
    cli("get", "cli/x", str(folder / "y.npy"), socket=daemon.socket)
    assert np.array_equal(np.load(folder / "y.npy"), x)
    cli("rm", "cli/x", socket=daemon.socket)
    assert "cli/x" in cli("get", "cli/x", str(folder / "z.npy"), socket=daemon.socket, code=2)


def test_call_runs_python_functions(daemon, folder):
    functions = """
@provider.share(name="cli.scale")
def scale(x, factor=1.0, *, names=()):
    return {"y": x * np.float32(factor), "names": list(names)}

@provider.share(name="cli.fail")
def fail():
    raise ValueError("on purpose")
"""
    np.save(folder / "q.npy", np.ones(4, np.float32))
    with providing(daemon.socket, functions):
        assert "cli.scale" in cli("call", "--list", socket=daemon.socket)
        out = folder / "scaled.safetensors"
        arguments = [f"@{folder / 'q.npy'}", "0.5", 'names=["a"]']
        cli("call", "cli.scale", *arguments, "--output", str(out), socket=daemon.socket)
        assert out.stat().st_size > 16
        assert json.loads(cli("call", "cli.scale", "3", socket=daemon.socket)) == {"y": 3.0, "names": []}
        assert "on purpose" in cli("call", "cli.fail", socket=daemon.socket, code=1)
        assert "cli.none" in cli("call", "cli.none", socket=daemon.socket, code=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_on_sigterm_and_sigint(number):
    with serving() as daemon:
        children = _children(daemon.process.pid)
        assert children, "a supervisor and its server"
        daemon.process.send_signal(number)
        assert daemon.process.wait(30) == 0
        until(lambda: not any(_is_there(child) for child in children))
        assert not daemon.socket.exists()


def test_killed_server_is_replaced_by_the_same_interpreter():
    with serving() as daemon:
        with daemon.connect() as store:
            held = store.put("kept", np.arange(1000, dtype=np.float32))
            first = daemon.info["server"]
            assert _command_of(first)[:3] == COMMAND
            os.kill(first, signal.SIGKILL)
            until(lambda: any(child != first and _is_there(child) for child in _children(daemon.process.pid)))
            # The next server has the tensors of the first, and clients reconnect.
            until(lambda: _has(daemon, "kept"))
            second = [child for child in _children(daemon.process.pid) if child != first][0]
            assert _command_of(second)[:3] == COMMAND
            assert np.array_equal(held.numpy(), np.arange(1000))
        until(lambda: "Z" not in "".join(_state(child) for child in _children(daemon.process.pid)))


def test_second_daemon_at_a_socket_is_refused():
    with serving() as daemon:
        assert "another daemon" in cli("serve", "--socket", str(daemon.socket), code=2)


def _has(daemon: Daemon, name: str) -> bool:
    try:
        with daemon.connect() as store:
            return name in store.names()
    except (OSError, cotensor.CotensorError):
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def _is_there(pid: int) -> bool:
    return _state(pid) not in ("", "Z")


def _command_of(pid: int) -> list[str]:
    return [part.decode() for part in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if part]


def test_scan_prints_the_code_that_shares_the_duplicates_of_a_program():
    program = "import numpy as np; x = np.arange(6 << 20, dtype=np.float64); print('ready', flush=True); input()"
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout and child.stdout.readline() == b"ready\n"
        pids = [child.pid for child in children]
        arguments = ["scan", *[part for pid in pids for part in ("--pid", str(pid))]]
        (advice,) = json.loads(cli(*arguments, "--json"))["advice"]
        assert advice["pids"] == sorted(pids) and advice["library"] == "numpy" and advice["model"] is None
        assert advice["duplicate_bytes"] >= 2 * 40 << 20
        assert all("cotensor.connect()" in line for line in advice["code"]) and len(advice["code"]) == 2
        shown = cli(*arguments).splitlines()
        assert [line.strip() for line in shown[-2:]] == advice["code"]
    finally:
        for child in children:
            child.communicate(b"\n", timeout=60)


def test_connect_reads_the_configuration_file(daemon, tmp_path):
    file = tmp_path / "config.toml"
    program = "import cotensor; print(cotensor.connect().socket)"

    def connects(text: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        file.write_text(text)
        env = environment(COTENSOR_CONFIG=str(file), **variables)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60)

    assert connects(f"socket = '{daemon.socket}'").stdout.strip() == str(daemon.socket)
    # A variable takes precedence, and the file forbids a daemon where no variable does.
    other = connects(f"socket = '{daemon.socket}'", COTENSOR_SOCKET=str(tmp_path / "none"))
    assert "NoDaemonError" in other.stderr and str(tmp_path / "none") in other.stderr
    forbidden = connects(f"socket = '{tmp_path}/none'\nautostart = false", COTENSOR_AUTOSTART="")
    assert "NoDaemonError" in forbidden.stderr and not (tmp_path / "none").exists()
    # An unknown key stops no program. A wrong value does.
    unknown = connects("sokcet = 'x'").stderr
    assert "NoDaemonError" in unknown and unknown.count(f"RuntimeWarning: {file}: sokcet: line 1: ") == 1
    wrong = connects("socket = []")
    assert "InvalidError" in wrong.stderr and "config.toml: socket: line 1" in wrong.stderr
