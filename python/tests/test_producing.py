"""Memory that PyTorch allocates for `Store.producing`, and tensors for another GPU, on a fake driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Daemon, serving
from device_common import Machine
from device_programs_common import Program
from test_device_tensors import daemon

PROGRAMS = Path(__file__).with_name("producing_programs.py")

ALONE = [
    "published_where_it_is",
    "kept_publication",
    "freed_while_published",
    "copied_where_it_must_be",
    "without_room",
    "budget_has_no_room",
    "closed_store_leaves_the_arrays_of_others",
    "copy_on_the_gpu",
    "producing_needs_a_gpu",
]


def run(program: str, running: Daemon, machine: Machine, *arguments: str) -> None:
    """Runs a program to its end."""
    command = [sys.executable, str(PROGRAMS), program, str(running.socket), *arguments]
    ended = subprocess.run(command, env=machine.environment(), capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("done\n"), ended.stdout + ended.stderr


@pytest.mark.parametrize("program", ALONE)
def test_process_with_a_gpu(program: str, tmp_path: Path) -> None:
    with daemon() as running:
        run(program, running, Machine(tmp_path))


def test_daemon_that_takes_no_slabs_gets_copies(tmp_path: Path) -> None:
    with serving("--max-device-memory=cuda:0=64MiB", "--seal-all") as running:
        run("sealed_by_the_daemon", running, Machine(tmp_path))


@pytest.mark.parametrize("access", ["peer", "refused"])
def test_other_gpu_reads_the_memory_or_has_one_copy(access: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, devices=2)
    machine.set(*(["peer_access"] if access == "peer" else []))
    with daemon(2) as running:
        run("another_gpu", running, machine, access)


def test_tensor_outlives_the_allocator(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with daemon() as running:
        producer = Program(PROGRAMS, "publishes", running, machine, "published")
        consumer = Program(PROGRAMS, "reads", running, machine, "read")
        producer.kill()
        consumer.ends()
        with running.connect() as store:
            del store["w"]
    assert machine.used() == 0


def test_array_stays_after_a_lost_connection(tmp_path: Path) -> None:
    with daemon() as running:
        program = Program(PROGRAMS, "lost_connection_keeps_the_array", running, Machine(tmp_path), "published")
        os.kill(running.info["server"], 9)
        program.ends()
