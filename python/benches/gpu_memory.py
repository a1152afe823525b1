"""Tensors of a store in the memory of a GPU, beside the driver: python python/benches/gpu_memory.py [--minutes M] [--gib SIZE]

The figures of docs/labs/gpu.md: the rate of copies on the device, then `put` of 256 MiB beside two passes of that memory, a first
and a repeated `get` beside an echo over a socket and the driver's calls, the attachment of a large module, the memory of four
processes beside one, and kernels on shared memory beside kernels on PyTorch's own. Each time is a median.

Prints a line for each figure, and rewrites $OUT/gpu_memory.json (./gpu_memory.json without OUT) after each, so that a run that is
stopped keeps its figures. Exit status: 0 all figures were taken, 1 some failed, 3 no device. `--trial` tries it on the fake
driver, without PyTorch's figures; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import cotensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from device_common import Driver  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
ROUNDS = 25
ECHO_BYTES = 200
PUT_BYTES = 256 * MIB


def median_us(call: Callable[[], Any], rounds: int = ROUNDS, after: Callable[[Any], Any] = lambda _: None) -> float:
    """The median of a call's time. `after` gets its result, outside of the time."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - begin)
        after(result)
    return statistics.median(times) * 1e6


class Bench:
    """The figures that were taken, in a file."""

    def __init__(self, minutes: float) -> None:
        self.ends = time.monotonic() + 60 * minutes
        self.file = Path(os.environ.get("OUT") or ".") / "gpu_memory.json"
        self.figures: Dict[str, Any] = {}
        self.failed: List[str] = []

    def figure(self, name: str, value: float, unit: str, at_most: str = "") -> None:
        print(f"{name}: {value:.3f} {unit}{f' (at most {at_most})' if at_most else ''}", flush=True)
        self.figures[name] = {"value": value, "unit": unit, "at most": at_most}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.figures, indent=1))
        part.replace(self.file)

    def step(self, take: Callable[[], None]) -> None:
        """Takes figures, unless the time is over. A failure ends only this step."""
        name = take.__name__.replace("_", " ")
        if time.monotonic() > self.ends:
            print(f"{name}: no time left", flush=True)
            return
        try:
            take()
        except Exception as error:  # noqa: BLE001 - the figures of other steps are wanted
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
            self.failed.append(name)


class Echo:
    """Answers messages with as many bytes and a descriptor, in a process of its own."""

    def __init__(self) -> None:
        self.socket, other = socket.socketpair()
        command = [sys.executable, __file__, "--echo", str(other.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[other.fileno()])
        other.close()

    def once(self) -> None:
        self.socket.sendall(bytes(ECHO_BYTES))
        _, descriptors, _, _ = socket.recv_fds(self.socket, ECHO_BYTES, 1)
        os.close(descriptors[0])

    @staticmethod
    def serve(number: int) -> None:
        own = socket.socket(fileno=number)
        with open("/dev/zero") as file:
            while message := own.recv(ECHO_BYTES):
                socket.send_fds(own, [message], [file.fileno()])


class Program:
    """Another process with the store: answers each line with one of its own."""

    def __init__(self, name: str, at: Path, *arguments: str) -> None:
        command = [sys.executable, __file__, "--program", name, str(at), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self) -> Dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


def answers(values: Iterator[Dict[str, Any]]) -> None:
    for _ in sys.stdin:
        print(json.dumps(next(values)), flush=True)


def serving(folder: Path, budget: int) -> Tuple[subprocess.Popen[bytes], Path]:
    """A daemon with a budget for the first GPU."""
    at = folder / "daemon.sock"
    limits = [f"--max-device-memory=cuda:0={budget}B", f"--socket={at}"]
    process = subprocess.Popen([sys.executable, "-m", "cotensor", "serve", *limits])
    while True:
        try:
            cotensor.connect(at, autostart=False).close()
            return process, at
        except cotensor.IoError:
            assert process.poll() is None, "the daemon has ended"
            time.sleep(0.05)


def opened_by_driver(driver: Driver, descriptor: int, nbytes: int) -> Callable[[], Tuple[int, int]]:
    """The driver's calls of a first get: import, reserve, map, access."""
    import ctypes as c

    from device_common import _Access

    def run() -> Tuple[int, int]:
        handle, address, access = c.c_uint64(), c.c_uint64(), _Access(1, 0, 1)
        driver.call("cuMemImportFromShareableHandle", c.byref(handle), c.c_void_p(descriptor), c.c_int(1))
        zeros = (c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
        driver.call("cuMemAddressReserve", c.byref(address), c.c_size_t(nbytes), *zeros)
        driver.call("cuMemMap", address, c.c_size_t(nbytes), c.c_size_t(0), handle, c.c_uint64(0))
        driver.call("cuMemSetAccess", address, c.c_size_t(nbytes), c.byref(access), c.c_size_t(1))
        return handle.value, address.value

    return run


def closed_by_driver(driver: Driver, nbytes: int) -> Callable[[Tuple[int, int]], None]:
    import ctypes as c

    def run(opened: Tuple[int, int]) -> None:
        handle, address = opened
        driver.call("cuMemUnmap", c.c_uint64(address), c.c_size_t(nbytes))
        driver.call("cuMemAddressFree", c.c_uint64(address), c.c_size_t(nbytes))
        driver.call("cuMemRelease", c.c_uint64(handle))

    return run


def shareable(driver: Driver, nbytes: int) -> int:
    """A descriptor of new memory."""
    import ctypes as c

    from device_common import _Properties

    handle, descriptor, properties = c.c_uint64(), c.c_int(), _Properties(1, 1, 1, 0)
    driver.call("cuMemCreate", c.byref(handle), c.c_size_t(nbytes), c.byref(properties), c.c_uint64(0))
    driver.call("cuMemExportToShareableHandle", c.byref(descriptor), handle, c.c_int(1), c.c_uint64(0))
    driver.call("cuMemRelease", handle)
    return descriptor.value


class Figures:
    """The steps, in the order of the documentation."""

    def __init__(self, bench: Bench, store: cotensor.Store, at: Path, gib: float, is_trial: bool) -> None:
        self.bench, self.store, self.at, self.gib = bench, store, at, gib
        self.is_trial, self.driver, self.echo = is_trial, Driver(), Echo()
        self.size = 4 * MIB if is_trial else PUT_BYTES
        self.rate = 0.0

    def echo_of_a_socket(self) -> None:
        self.echo_us = median_us(self.echo.once, 1000)
        self.bench.figure(f"echo of {ECHO_BYTES} bytes with a descriptor", self.echo_us, "us")

    def rate_of_copies(self) -> None:
        import torch

        source = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
        target = torch.empty_like(source)

        def copy() -> None:
            target.copy_(source)
            torch.cuda.synchronize()

        copy()
        self.rate = 2 * GIB / (median_us(copy) / 1e6)
        self.bench.figure("C, copies on the device, read and written", self.rate / 1e9, "GB/s")

    def put_into_a_warm_store(self) -> None:
        import torch

        source = torch.ones(PUT_BYTES, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        self.store.put("warm", source, keep=False).release()
        taken = median_us(lambda: self.store.put("warm", source, keep=False), after=lambda tensor: tensor.release())
        floor = 2 * PUT_BYTES / self.rate * 1e6
        self.bench.figure("put of 256 MiB", taken, "us", f"{1.25 * floor + 2 * self.echo_us:.1f}: 1.25 floors + 2 echoes")

    def first_and_repeated_get(self) -> None:
        with self.store.empty("w", self.size, "uint8", device="cuda:0"):
            pass
        descriptor = shareable(self.driver, self.size)
        calls = opened_by_driver(self.driver, descriptor, self.size)
        alone = median_us(calls, after=closed_by_driver(self.driver, self.size))
        reader = Program("gets", self.at)
        taken = reader.ask()
        reader.end()
        self.bench.figure("import, reserve, map and access by the driver", alone, "us")
        limit = f"{1.5 * (self.echo_us + alone):.1f}: 1.5 times echo and driver"
        self.bench.figure("first get", taken["first"], "us", limit)
        self.bench.figure("repeated get", taken["repeated"], "us", "2")

    def attachment_of_a_module(self) -> None:
        import torch

        import cotensor.torch

        make = lambda: torch.nn.Linear(8192, 8192, bias=False, device="cuda:0", dtype=torch.float16)  # noqa: E731
        layers = [make() for _ in range(int(self.gib * 8))]
        module = torch.nn.Sequential(*layers)
        cotensor.torch.publish(module, "large", self.store)
        del module, layers
        torch.cuda.empty_cache()
        published, grown, taken, programs = self.store["large"].nbytes, [], [], []
        for _ in range(4):
            program = Program("attaches", self.at, str(int(self.gib * 8)))
            program.ask()
            before = self.used()
            taken.append(program.ask()["attach"])
            grown.append(self.used() - before)
            programs.append(program)
        self.bench.figure(f"attachment of a module of {self.gib:g} GiB", statistics.median(taken), "ms", "50")
        ratio = (published + sum(grown)) / (published + grown[0])
        self.bench.figure("memory of four processes beside one, without contexts", ratio, "times", "1.02")
        for program in programs:
            program.end()
        self.store.remove("large")

    def kernels_on_shared_memory(self) -> None:
        import torch

        own = torch.randn(8192, 8192, device="cuda:0", dtype=torch.float16)
        shared = self.store.put("kernels", own).torch()
        vector = torch.randn(8192, 1, device="cuda:0", dtype=torch.float16)
        wide = torch.randn(8192, 4096, device="cuda:0", dtype=torch.float16)
        kernels: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "maximum": torch.Tensor.max,
            "product with a matrix": lambda weight: weight @ wide,
            "product with a vector": lambda weight: weight @ vector,
        }
        for name, kernel in kernels.items():
            times: Dict[int, List[float]] = {0: [], 1: []}
            for _ in range(75):
                for which, weight in enumerate((own, shared)):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    kernel(weight)
                    end.record()
                    end.synchronize()
                    times[which].append(begin.elapsed_time(end))
            ratio = statistics.median(times[1]) / statistics.median(times[0])
            self.bench.figure(f"{name}: shared memory beside PyTorch's own", ratio, "times", "1.02")

    def used(self) -> int:
        import torch

        free, total = torch.cuda.mem_get_info(0)
        return total - free

    def take(self) -> None:
        steps: List[Callable[[], None]] = [self.echo_of_a_socket, self.first_and_repeated_get]
        if not self.is_trial:
            steps = [
                self.rate_of_copies, self.echo_of_a_socket, self.put_into_a_warm_store, self.first_and_repeated_get,
                self.attachment_of_a_module, self.kernels_on_shared_memory,
            ]  # fmt: skip
        for step in steps:
            self.bench.step(step)
        self.echo.socket.close()


def gets(store: cotensor.Store) -> Iterator[Dict[str, Any]]:
    first = median_us(lambda: store["w"], after=lambda tensor: tensor.release())
    held = store["w"]
    repeated = median_us(lambda: store["w"], 1000)
    yield {"first": first, "repeated": repeated}
    del held


def attaches(store: cotensor.Store, layers: int) -> Iterator[Dict[str, Any]]:
    import torch

    import cotensor.torch

    torch.zeros(1, device="cuda:0").sum().item()
    yield {"context": True}
    with cotensor.torch.on_meta():
        module = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(layers)))
    begin = time.perf_counter()
    cotensor.torch.attach(module, "large", store)
    yield {"attach": (time.perf_counter() - begin) * 1e3}
    del module


def has_device(is_trial: bool) -> bool:
    if is_trial:
        return True
    import torch

    return torch.cuda.is_available()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="when no further step is begun")
    parser.add_argument("--gib", type=float, default=16.0, help="size of the module")
    parser.add_argument("--trial", action="store_true", help="only what needs no PyTorch, on the fake driver")
    parser.add_argument("--echo", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--program", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo is not None:
        Echo.serve(options.echo)
        return 0
    if options.program is not None:
        name, at, *arguments = options.program
        with cotensor.connect(at, autostart=False) as store:
            answers(globals()[name](store, *map(int, arguments)))
        return 0
    if not has_device(options.trial):
        print("gpu_memory: PyTorch has no CUDA device", flush=True)
        return 3
    os.environ.setdefault("COTENSOR_CUDA_DRIVER", "libcuda.so.1")
    bench = Bench(options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        budget = 512 * MIB if options.trial else int((options.gib + 4) * GIB)
        process, at = serving(Path(folder), budget)

        def end() -> None:
            process.terminate()
            os._exit(1)

        # A step that hangs ends with the script.
        timer = threading.Timer(60 * options.minutes + 60, end)
        timer.daemon = True
        timer.start()
        try:
            with cotensor.connect(at, autostart=False) as store:
                Figures(bench, store, at, options.gib, options.trial).take()
        finally:
            process.terminate()
            process.wait()
    os._exit(1 if bench.failed else 0)


if __name__ == "__main__":
    sys.exit(main())
