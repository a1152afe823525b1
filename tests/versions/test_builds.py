"""Two builds with each other: clients of one, the daemon and further processes of the other. `make test-versions` runs it.

Builds with one number of the protocol must work together, as docs/operate/versions.md promises. Builds with two numbers
must refuse each other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Iterator, Tuple

import pytest
from builds import Build, Daemon, Program, until

REPOSITORY = Path(__file__).resolve().parents[2]
BERT = str(REPOSITORY / "fixtures" / "tiny" / "bert")

OLD = Build.made("old", Path(os.environ["COTENSOR_OLD"]))
NEW = Build.made("new", Path(os.environ["COTENSOR_NEW"]))
PROTOCOLS = (OLD.about["protocol"], NEW.about["protocol"])
one_protocol = pytest.mark.skipif(PROTOCOLS[0] != PROTOCOLS[1], reason=f"the builds have the protocols {PROTOCOLS}")
two_protocols = pytest.mark.skipif(PROTOCOLS[0] == PROTOCOLS[1], reason=f"both builds have protocol {PROTOCOLS[0]}")

Pair = Tuple[Build, Daemon]


@pytest.fixture
def folder() -> Iterator[Path]:
    # The names of pytest's folders are too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="cot-") as folder:
        yield Path(folder)


@pytest.fixture(params=[(OLD, NEW), (NEW, OLD)], ids=["old client and new daemon", "new client and old daemon"])
def pair(request: pytest.FixtureRequest, folder: Path) -> Iterator[Pair]:
    """The build of the client, and a daemon of the other build."""
    client, server = request.param
    daemon = Daemon(server, folder)
    try:
        yield client, daemon
    finally:
        daemon.end()


@contextmanager
def held(pair: Pair) -> Iterator[Program]:
    """A program of the client's build that holds the first version of x, which the daemon's build published."""
    client, daemon = pair
    daemon.run(daemon.build, "publish", "x", "1")
    with daemon.program(client, "hold", "x", "1") as holder:
        assert holder.line() == "holds"
        yield holder


def extension(build: Build) -> Path:
    code = "import cotensor; print(cotensor._native.__file__)"
    return Path(subprocess.check_output([str(build.python), "-c", code], text=True, stdin=subprocess.DEVNULL).strip())


def test_builds_differ() -> None:
    """A test of a build with itself would prove nothing."""
    assert sha256(extension(OLD).read_bytes()).digest() != sha256(extension(NEW).read_bytes()).digest()


@one_protocol
def test_tensors_of_one_build_are_read_by_the_other(pair: Pair) -> None:
    client, daemon = pair
    for prefix, writer, reader in ("a ", client, daemon.build), ("b ", daemon.build, client), ("c ", client, client):
        daemon.run(writer, "write", prefix)
        daemon.run(reader, "read", prefix)


@one_protocol
def test_lease_keeps_a_superseded_version_until_its_process_ends(pair: Pair) -> None:
    client, daemon = pair
    daemon.run(client, "publish", "x", "1")
    with daemon.program(client, "hold", "x", "1") as holder:
        assert holder.line() == "holds"
        daemon.run(daemon.build, "publish", "x", "2")
        for build in client, daemon.build:
            assert daemon.leases(build, "x") == {1: 1, 2: 0}
        holder.finish()
    until(lambda: daemon.leases(client, "x") == {2: 0})


@one_protocol
def test_killed_process_keeps_no_lease(pair: Pair) -> None:
    client, daemon = pair
    with held(pair) as holder:
        assert daemon.leases(client, "x") == {1: 1}
        holder.process.kill()
    until(lambda: daemon.leases(client, "x") == {1: 0})


@one_protocol
def test_waits_and_watches_see_the_other_build(pair: Pair) -> None:
    client, daemon = pair
    for prefix, waiter, publisher in ("a ", client, daemon.build), ("b ", daemon.build, client):
        with daemon.program(waiter, "wait", prefix) as waiting:
            assert waiting.line() == "waits"
            daemon.run(publisher, "publish", prefix + "x", "1")
            assert waiting.line() == "found"
            daemon.run(publisher, "publish", prefix + "x", "2")
            waiting.finish()


@one_protocol
def test_claim_waits_for_the_other_build(pair: Pair) -> None:
    client, daemon = pair
    for key, computes, claims in ("a", client, daemon.build), ("b", daemon.build, client):
        with daemon.program(computes, "compute", key) as computing:
            assert computing.line() == "computes"
            with daemon.program(claims, "claim", key) as claiming:
                assert claiming.line() == "claims"
                computing.finish()
                claiming.finish()


def calls(daemon: Daemon, provider: Build, caller: Build) -> None:
    with daemon.program(provider, "provide") as providing:
        until(lambda: daemon.command(caller, "call", "same", "1").returncode == 0)
        daemon.run(caller, "call")
        assert providing.process.poll() is None
        providing.process.terminate()
        assert providing.process.wait(60) == 0


@one_protocol
def test_functions_of_the_other_build_are_called(pair: Pair) -> None:
    client, daemon = pair
    calls(daemon, provider=daemon.build, caller=client)
    calls(daemon, provider=client, caller=daemon.build)


@one_protocol
def test_embeddings_are_equal(pair: Pair) -> None:
    client, daemon = pair
    texts = ["gulls", "a crane lifts grain"]
    ours = json.loads(daemon.run(client, "embed", BERT, *texts))
    assert len(ours) == 2 and ours[0] != ours[1]
    assert json.loads(daemon.run(daemon.build, "embed", BERT, *texts)) == ours


@one_protocol
def test_commands_show_the_other_daemon(pair: Pair, folder: Path) -> None:
    client, daemon = pair
    written = folder / "written.bin"
    written.write_bytes(os.urandom(1 << 20))
    daemon.answer(client, "put", "x", str(written), "--format", "raw", "--dtype", "uint8", "--shape", str(1 << 20))
    daemon.run(daemon.build, "publish", "y", "1")
    assert {tensor["name"]: tensor["bytes"] for tensor in daemon.answer(client, "ls")["tensors"]} == {"x": 1 << 20, "y": 1 << 20}
    assert daemon.answer(client, "stat", "x")["tensors"][0]["versions"][0]["producer"] == "cotensor put"
    status = daemon.answer(client, "status")
    assert (status["server"], status["tensors"]) == (daemon.server, 2)
    daemon.answer(client, "models", "load", BERT)
    assert BERT in json.dumps(daemon.answer(client, "models", "ps"))
    daemon.answer(client, "get", "x", str(folder / "read.raw"))
    assert (folder / "read.raw").read_bytes() == written.read_bytes()
    assert daemon.command(client, "rm", "x").returncode == 0
    # Beside the weights of the model.
    left = {tensor["name"] for tensor in daemon.answer(client, "ls")["tensors"]}
    assert "x" not in left and "y" in left


@one_protocol
def test_session_is_resumed_by_the_next_server(pair: Pair) -> None:
    client, daemon = pair
    with held(pair) as holder:
        daemon.replace_server()
        until(lambda: daemon.leases(client, "x") == {1: 1})
        holder.finish("y")
    assert daemon.leases(client, "y") == {1: 0}


@one_protocol
def test_server_of_the_other_build_takes_over(pair: Pair, folder: Path) -> None:
    """An upgrade as docs/explanation/recovery.md has it, or a downgrade: the program is replaced, then the server is killed."""
    client, daemon = pair
    before = daemon.build
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True, stdin=subprocess.DEVNULL)
    replaced = Build("replaced", folder / "env" / "bin" / "python", before.wheel)
    replaced.install(before)
    (folder / "upgraded").mkdir()
    upgraded = Daemon(replaced, folder / "upgraded")
    try:
        upgraded.run(before, "write", "a ")
        upgraded.run(before, "publish", "x", "1")
        with upgraded.program(before, "hold", "x", "1") as holder:
            assert holder.line() == "holds"
            replaced.install(client)
            server = upgraded.replace_server()
            mapped = [line for line in Path(f"/proc/{server}/maps").read_text().splitlines() if str(folder / "env") in line]
            assert mapped and not any("(deleted)" in line for line in mapped), mapped
            until(lambda: upgraded.leases(client, "x") == {1: 1})
            holder.finish("y")
        upgraded.run(client, "read", "a ")
        upgraded.run(before, "read", "a ")
        assert upgraded.leases(client, "y") == {1: 0}
    finally:
        upgraded.end()


@two_protocols
def test_another_protocol_is_refused(pair: Pair) -> None:
    client, daemon = pair
    message = f"the daemon has protocol {daemon.build.about['protocol']}, the client {client.about['protocol']}"
    refused = daemon.command(client, "ls")
    assert refused.returncode != 0 and message in refused.stderr, refused
    with pytest.raises(AssertionError, match="UnsupportedError: .*" + message):
        daemon.run(client, "publish", "x", "1")


def test_stop_ends_the_other_daemon(pair: Pair) -> None:
    client, daemon = pair
    stopped = daemon.command(client, "stop")
    assert stopped.returncode == 0, stopped
    assert daemon.process.wait(60) is not None and not daemon.socket.exists()
