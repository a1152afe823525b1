"""Tensors on CUDA devices, on a fake driver: each program of `device_programs` and `device_array_programs` is a process with a
GPU of its own machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import pytest
from conftest import Daemon, serving
from device_common import UNIT, InstalledMachine, Machine
from device_programs_common import Program, run

PROGRAMS = "device_programs.py"
UUIDS = ",".join(f"GPU-636f7465-6e73-6f72-2066-616b{device:08x}" for device in range(2))

ALONE = [
    "capsule_describes_the_published_memory",
    "streams_and_devices_of_requests",
    "requested_copies_are_writable_and_own",
    "cuda_array_interface",
    "host_methods_name_the_way_out",
    "writes_in_place_are_errors",
    "lifetimes",
    "small_tensors_share_memory",
    "range_is_used_again_after_the_work_that_reads_it",
    "memory_of_dropped_arrays_is_free_for_the_next",
    "work_that_does_not_end_is_no_endless_wait",
    "errors",
]
#: Of `device_array_programs`.
ALONE_WITH_ARRAYS = [
    "builder_is_filled_on_the_device",
    "publication_of_a_stream_waits_for_it_alone",
    "builder_takes_arrays_of_both_places",
    "failed_publication_keeps_the_address",
    "device_arrays_are_copied_on_their_device",
    "interface_arrays_are_copied_on_their_device",
]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def any_machine(tmp_path: Path) -> Machine:
    """That with the installed driver for `make test-gpu`."""
    return InstalledMachine() if os.environ.get("COTENSOR_TEST_DEVICE") == "cuda" else Machine(tmp_path)


@contextmanager
def daemon(devices: int = 1) -> Iterator[Daemon]:
    limits = [f"--max-device-memory=cuda:{device}=64MiB" for device in range(devices)]
    with serving(*limits) as running:
        yield running


@pytest.mark.parametrize("program", ALONE)
def test_process_with_a_gpu(program: str, machine: Machine) -> None:
    with daemon() as running:
        run(PROGRAMS, program, running, machine.environment())


@pytest.mark.parametrize("program", ALONE_WITH_ARRAYS)
def test_process_that_fills_memory_of_a_gpu(program: str, machine: Machine) -> None:
    with daemon() as running:
        run("device_array_programs.py", program, running, machine.environment())


@pytest.mark.parametrize("first", ["producer", "consumer", "server"])
def test_two_processes_share_one_tensor_whichever_dies(first: str, any_machine: Machine) -> None:
    machine = any_machine
    with daemon() as running:
        producer = Program(PROGRAMS, "shares", running, machine, "published")
        consumer = Program(PROGRAMS, "reads", running, machine, "read")
        assert machine.has_used(UNIT), "one copy"
        if first == "producer":
            producer.kill()
        elif first == "consumer":
            consumer.kill()
            consumer = Program(PROGRAMS, "reads", running, machine, "read")
        else:
            os.kill(running.info["server"], 9)
        consumer.go_on()
        consumer.reaches("read again")
        consumer.ends()
        if first != "producer":
            producer.ends()
        with running.connect() as store:
            assert machine.has_used(UNIT), "the daemon keeps it"
            del store["w"]
            assert "w" not in store
    assert machine.has_used(0)


def test_devices_have_numbers_of_the_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, devices=2)
    with daemon(2) as running:
        run(PROGRAMS, "publishes_on_each_device", running, machine.environment())
        run(PROGRAMS, "other_device_of_an_array", running, machine.environment())
        renumbered = machine.environment(CUDA_VISIBLE_DEVICES="1", COTENSOR_CUDA_DEVICES=UUIDS)
        run(PROGRAMS, "renumbered_device", running, renumbered)
        run(PROGRAMS, "device_of_the_rank", running, machine.environment(RANK="3", GPUS_PER_NODE="2"))


def test_figures_are_taken(machine: Machine, tmp_path: Path) -> None:
    """The script of `make bench-gpu`; its times mean nothing here."""
    script = Path(__file__).parents[1] / "benches" / "gpu_memory.py"
    command = [sys.executable, str(script), "--trial", "--minutes", "1"]
    ended = subprocess.run(command, env=machine.environment(OUT=str(tmp_path)), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "gpu_memory.json").read_text())
    assert len(figures) == 4 and all(figure["value"] > 0 for figure in figures.values()), figures


def test_process_without_a_driver_has_clear_errors(machine: Machine) -> None:
    with daemon() as running:
        environment = machine.environment(COTENSOR_CUDA_DRIVER="/nonexistent/libcuda.so.1")
        run(PROGRAMS, "without_a_driver", running, environment)
