"""Tensors on CUDA devices, on a fake driver: each program of `device_programs` is a process with a GPU of its own machine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import pytest
from conftest import Daemon, serving
from device_common import UNIT, Machine

PROGRAMS = Path(__file__).with_name("device_programs.py")
UUIDS = ",".join(f"GPU-636f7465-6e73-6f72-2066-616b{device:08x}" for device in range(2))

ALONE = [
    "capsule_describes_the_published_memory",
    "streams_and_devices_of_requests",
    "requested_copies_are_writable_and_own",
    "cuda_array_interface",
    "host_methods_name_the_way_out",
    "writes_in_place_are_errors",
    "builder_is_filled_on_the_device",
    "builder_takes_arrays_of_both_places",
    "failed_publication_keeps_the_address",
    "device_arrays_are_copied_on_their_device",
    "interface_arrays_are_copied_on_their_device",
    "lifetimes",
    "small_tensors_share_memory",
    "range_is_used_again_after_the_work_that_reads_it",
    "memory_of_dropped_arrays_is_free_for_the_next",
    "errors",
]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@contextmanager
def daemon(devices: int = 1) -> Iterator[Daemon]:
    limits = [f"--max-device-memory=cuda:{device}=64MiB" for device in range(devices)]
    with serving(*limits) as running:
        yield running


def run(program: str, running: Daemon, environment: dict[str, str]) -> None:
    """Runs a program to its end."""
    command = [sys.executable, str(PROGRAMS), program, str(running.socket)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("done\n"), ended.stdout + ended.stderr


class Program:
    """A program that stops at its steps."""

    def __init__(
        self, program: str, running: Daemon, machine: Machine, reached: str, programs: Path = PROGRAMS
    ) -> None:
        command = [sys.executable, str(programs), program, str(running.socket)]
        self.process = subprocess.Popen(
            command, env=machine.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.reaches(reached)

    def reaches(self, step: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{step}\n"

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ends(self) -> None:
        self.go_on()
        output, _ = self.process.communicate()
        assert (self.process.returncode, output) == (0, "done\n")


@pytest.mark.parametrize("program", ALONE)
def test_process_with_a_gpu(program: str, machine: Machine) -> None:
    with daemon() as running:
        run(program, running, machine.environment())


@pytest.mark.parametrize("first", ["producer", "consumer", "server"])
def test_two_processes_share_one_tensor_whichever_dies(first: str, machine: Machine) -> None:
    with daemon() as running:
        producer = Program("shares", running, machine, "published")
        consumer = Program("reads", running, machine, "read")
        assert machine.used() == UNIT, "one copy"
        if first == "producer":
            producer.kill()
        elif first == "consumer":
            consumer.kill()
            consumer = Program("reads", running, machine, "read")
        else:
            os.kill(running.info["server"], 9)
        consumer.go_on()
        consumer.reaches("read again")
        consumer.ends()
        if first != "producer":
            producer.ends()
        with running.connect() as store:
            assert machine.used() == UNIT, "the daemon keeps it"
            del store["w"]
            assert "w" not in store
    assert machine.used() == 0


def test_devices_have_numbers_of_the_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, devices=2)
    with daemon(2) as running:
        run("publishes_on_each_device", running, machine.environment())
        run("other_device_of_an_array", running, machine.environment())
        renumbered = machine.environment(CUDA_VISIBLE_DEVICES="1", COTENSOR_CUDA_DEVICES=UUIDS)
        run("renumbered_device", running, renumbered)
        run("device_of_the_rank", running, machine.environment(RANK="3", GPUS_PER_NODE="2"))


def test_process_without_a_driver_has_clear_errors(machine: Machine) -> None:
    with daemon() as running:
        environment = machine.environment(COTENSOR_CUDA_DRIVER="/nonexistent/libcuda.so.1")
        run("without_a_driver", running, environment)
