"""Programs that divide a device: processes of their own, a program that is killed or stopped, a daemon that is replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager

import pytest
from conftest import command, serving
from functions_common import stop_process, until
from tensorref_programs_common import programs as programs_of

torch = pytest.importorskip("torch")

from cotensor.errors import NoDaemonError, UnsupportedError  # noqa: E402
from cotensor.tensorref import offload, simulated_device  # noqa: E402

#: A layer has 257 KiB; 16 layers have 4112 KiB.
MEMORY = 4 << 20


@contextmanager
def programs():
    with programs_of("tensorref_program.py") as started:
        yield lambda socket, layers=16, width=256, **options: started(socket, MEMORY, layers, width, json.dumps(options))


def shares(daemon):
    text = subprocess.run([*command(), "stat", "--json", "--socket", str(daemon.socket)], capture_output=True, check=True).stdout
    found = [program for device in json.loads(text)["devices"] for program in device["programs"]]
    assert sum(program["held_bytes"] for program in found) <= MEMORY
    return found


def run_until(program, what, done):
    """Runs the model until a state satisfies ``done``."""
    found = []

    def ran():
        found.append(program.ask("run 3"))
        assert found[-1]["out_of_memory"] == 0
        return done(found[-1])

    until(ran, what)
    return found[-1]


def test_programs_divide_a_device(daemon):
    with programs() as start:
        first = start(daemon.socket)
        assert first.started["share_bytes"] == MEMORY
        run_until(first, "all weights stay", lambda state: state["used_bytes"] > MEMORY * 3 // 4)
        second = start(daemon.socket)
        # The first one has freed memory while it ran nothing.
        assert second.started["share_bytes"] >= MEMORY // 2
        assert second.ask("run 5")["on_host"] == 0
        # An idle program gives way to a busy one, and keeps its smallest amount.
        run_until(second, "the first gives way", lambda state: state["share_bytes"] > MEMORY * 5 // 8)
        few = shares(daemon)[0]
        assert not few["busy"] and few["share_bytes"] == few["smallest_bytes"] > 0
        # With that it works, and gets its half again.
        run_until(first, "both are busy", lambda state: second.ask("run 3") and state["share_bytes"] == MEMORY // 2)
        assert first.ask("run 1")["allocated"] <= MEMORY // 2
        assert "share_bytes" not in second.end()
        run_until(first, "all weights stay", lambda state: state["used_bytes"] > MEMORY * 3 // 4)
        assert first.end()["out_of_memory"] == 0
    until(lambda: not shares(daemon), "no program is left")


def test_stopped_program_keeps_its_memory_and_a_killed_one_gives_it_back():
    with serving() as daemon, programs() as start:
        first = start(daemon.socket)
        stop_process(first.process.pid)
        second = start(daemon.socket)
        assert second.started["share_bytes"] == 0
        state = second.ask("run 2")
        assert state["on_host"] > 0 and state["used_bytes"] == 0
        assert [program["held_bytes"] for program in shares(daemon)] == [MEMORY, 0]
        first.process.send_signal(signal.SIGCONT)
        run_until(second, "the first has answered", lambda state: state["share_bytes"] >= MEMORY // 2)
        run_until(first, "both are busy", lambda state: second.ask("run 3") and state["share_bytes"] == MEMORY // 2)
        # A new server finds both, and gives no memory twice.
        os.kill(daemon.info["server"], signal.SIGKILL)
        until(lambda: len(shares(daemon)) == 2, "both have joined again")
        # In the middle of its work.
        first.process.stdin.write("run 100000\n")
        first.process.stdin.flush()
        until(lambda: shares(daemon)[0]["busy"], "the first is busy")
        first.kill()
        run_until(second, "the memory returns", lambda state: state["share_bytes"] == MEMORY)
        daemon.stop()
        # Without a daemon, the share stays.
        assert second.ask("run 1")["share_bytes"] == MEMORY


def test_a_program_killed_in_mid_copy_gives_its_memory_back(daemon):
    with programs() as start:
        first, second = start(daemon.socket), start(daemon.socket)
        run_until(second, "both are busy", lambda state: first.ask("run 3") and state["share_bytes"] == MEMORY // 2)
        assert first.ask("copy")["copying"].endswith("weight")
        first.kill()
        run_until(second, "the memory returns", lambda state: state["share_bytes"] == MEMORY)
        # A program that starts afterwards gets its part.
        third = start(daemon.socket)
        assert third.started["share_bytes"] >= MEMORY // 2 and third.ask("run 5")["on_host"] == 0


def test_needs_beyond_the_device_are_an_error(daemon):
    with programs() as start:
        start(daemon.socket, layers=1, width=768)
        refused = start(daemon.socket, layers=1, width=768).started
        assert refused["error"] == "OverBudgetError" and "cotensor top" in refused["message"]


def test_broker_is_optional(daemon, monkeypatch, tmp_path):
    model = torch.nn.Linear(4, 4)
    monkeypatch.setenv("COTENSOR_SOCKET", str(tmp_path / "none"))
    try:
        simulated_device(memory="1MiB", name="optional")
        with offload(model, "simulated") as session:
            assert "share_bytes" not in session.stats()
        with pytest.raises(NoDaemonError):
            offload(model, "simulated", broker=True).__enter__()
        monkeypatch.setenv("COTENSOR_SOCKET", str(daemon.socket))
        for options in ({"broker": False}, {"memory": "500KiB"}):
            with offload(model, "simulated", **options) as session:
                assert "share_bytes" not in session.stats()
        session = offload(model, "simulated", broker=True, memory="500KiB")
        for _ in range(2):
            with session:
                assert 0 < session.stats()["share_bytes"] <= 500 << 10
            assert "share_bytes" not in session.stats()
        simulated_device()
        with pytest.raises(UnsupportedError, match="identity"):
            offload(model, "simulated", broker=True).__enter__()
    finally:
        simulated_device()
