"""Every size from 64 bytes to 256 MB: put, get and calls beside a copy, an echo, shared_memory, a pipe, Ray and iceoryx2.

    python benches/sizes.py [--sizes BYTES ...] [--rounds N] [--no-ray] [--json FILE] [--chart FILE]

Times are medians of interleaved rounds, in microseconds. `copy` is numpy's into memory that was written before. `put` publishes
versions of one name, in memory that is used again up to 64 MiB; `put, sealed` in new memory; `put, cold` is the first of a new
client. A first `get` is of another client
after each publication. The function of the calls returns the length of its argument, or the argument itself. iceoryx2 loans
memory, copies into it, sends and receives, in one process; `channel` does the same with a channel. An echo is of a process on
another processor, which sleeps until the message comes. At the end the figures of `channels.py`. Release builds only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from contextlib import ExitStack
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import channels
import numpy as np
import torch
from iceoryx import iceoryx_channel
from measure import Child, Echo, daemon, interleaved
from peers import start_ray
from sizes_chart import chart

import cotensor
from cotensor.client import SharedTensorClient

KB, MB = 1 << 10, 1 << 20
SIZES = [64, KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, 600 * KB, 1126 * KB, 2458 * KB, 8 * MB, 16 * MB, 64 * MB, 128 * MB, 256 * MB]
#: The bounds of a figure, as a sum of copies and echoes; beyond them it is missed.
BOUNDS: Dict[str, Tuple[float, float]] = {"put": (1.5, 1.5), "get, first": (0, 1.5), "call, in + out": (3, 3)}
#: The bound of a `get` of a tensor that the process holds, in seconds.
HELD_MAX = 4e-6
#: Figures and the peers that may not be faster. iceoryx2 has no names that a third process finds: its counterpart is the channel.
PEERS = {"put": ["shared_memory", "ray.put"], "call, in + out": ["pipe, in + out"], "channel": ["iceoryx2"]}
#: The first tensor of a client takes no longer than one in new sealed memory.
PEERS["put, cold"] = ["put, sealed"]
#: The most echoes of a call with this size.
CALL_SIZE, CALL_ECHOES = 600 * KB, 3.5
#: A channel may take this much more than the peer.
CHANNEL_FACTOR = 1.5
#: The columns, in their order.
COLUMNS = ["copy", "put", "put, sealed", "put, cold", "put + get", "get, held", "get, first", "call, in", "call, in + out"]
COLUMNS += ["channel", "shared_memory", "ray.put", "iceoryx2", "pipe, in + out"]

PROVIDER = """
import sys, torch; torch.set_num_threads(1)
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket=sys.argv[1], execution_mode="server")
@provider.share(name="length")
def length(x):
    return x.numel()
@provider.share(name="same")
def same(x):
    return x
provider.start()
print("ready", flush=True)
sys.stdin.read()
provider.close()
"""


def echo_bytes(pipe: Connection, other: Connection) -> None:
    """Sends back each message, until the other end is closed."""
    # This process is a fork, which has the other end, too.
    other.close()
    try:
        while True:
            pipe.send_bytes(pipe.recv_bytes())
    except EOFError:
        pass


class Contenders:
    """What is measured, for arrays of one size at a time."""

    def __init__(self, socket: str, ray: Optional[Any]) -> None:
        # The fork comes first, so that it has no descriptors of the others.
        self.pipe, other = Pipe()
        self.piped = get_context("fork").Process(target=echo_bytes, args=(other, self.pipe), daemon=True)
        self.piped.start()
        other.close()
        self.socket, self.ray, self.iceoryx = socket, ray, iceoryx_channel()
        self.store, self.reader = cotensor.connect(socket), cotensor.connect(socket)
        self.new = self.store
        self.channel: Optional[cotensor.Channel] = None
        self.provider = Child(PROVIDER, socket)
        assert self.provider.line() == "ready"
        self.client = SharedTensorClient(socket=socket)

    def close(self) -> None:
        self.client.close()
        self.provider.end()
        self.pipe.close()
        self.piped.join(60)

    def of_size(self, size: int) -> Tuple[Dict[str, Callable[[], object]], Dict[str, Callable[[], object]]]:
        """The contenders, and the functions that run before each of their runs."""
        array = np.random.default_rng(size).integers(0, 255, size, "u1")
        tensor, target = torch.from_numpy(array), array.copy()
        store, reader = self.store, self.reader
        self.held = store.put("held", array)
        if self.channel is not None:
            self.channel.close()
        channel = self.channel = store.channel("sizes", size, "uint8", slots=1, readers=1)
        frames = reader.read_channel("sizes")

        def connect() -> None:
            self.new = cotensor.connect(self.socket)

        def in_shared_memory() -> None:
            memory = SharedMemory(create=True, size=size)
            np.copyto(np.frombuffer(memory.buf, "u1", size), array)
            memory.close()
            memory.unlink()

        def through_pipe() -> int:
            self.pipe.send_bytes(array)
            return len(self.pipe.recv_bytes())

        runs: Dict[str, Callable[[], object]] = {
            "copy": lambda: np.copyto(target, array),
            "put": lambda: store.put("x", array),
            "put, sealed": lambda: store.put("sealed", array, sealed=True),
            "put, cold": lambda: self.new.put("cold", array),
            "put + get": lambda: (store.put("x", array), reader.get("x")),
            "get, held": lambda: store.get("held"),
            "get, first": lambda: reader.get("x"),
            "call, in": lambda: self.client.call_function("length", [tensor]),
            "call, in + out": lambda: self.client.call_function("same", [tensor]),
            "channel": lambda: (channel.put(array), frames.try_get()),
            "shared_memory": in_shared_memory,
            "pipe, in + out": through_pipe,
        }
        if self.ray is not None:
            put = self.ray.put
            runs["ray.put"] = lambda: put(array)
        if self.iceoryx is not None:
            runs["iceoryx2"] = self.iceoryx(array)
        return runs, {"get, first": lambda: store.put("x", array), "put, cold": connect}


CORES = os.sched_getaffinity(0)


def pin() -> None:
    """Keeps this thread off the processor of the echo."""
    os.sched_setaffinity(0, CORES - {max(CORES)} or CORES)


def free(then: Optional[Callable[[], object]]) -> Callable[[], None]:
    """Gives this thread all processors again, and then runs the function."""

    def run() -> None:
        os.sched_setaffinity(0, CORES)
        if then is not None:
            then()

    return run


def rounds_of(size: int, rounds: int) -> Tuple[int, int]:
    """The rounds, and the runs of each."""
    if size <= 256 * KB:
        return rounds, 20
    if size <= 4 * MB:
        return rounds, 8
    return (max(2, rounds // 3), 3) if size <= 16 * MB else (2, 2)


def judged(size: int, taken: Dict[str, float]) -> Iterator[Tuple[str, bool]]:
    """The figures of a size beside their bounds."""
    echo = taken["echo"]
    if size == CALL_SIZE:
        call, most = taken["call, in + out"], CALL_ECHOES * echo
        yield f"call, in + out: {micros(call)} us, {CALL_ECHOES} echoes {micros(most)}", call <= most
    for name, (copies, echoes) in BOUNDS.items():
        bound = copies * taken["copy"] + echoes * echo
        yield f"{name}: {micros(taken[name])} us, at most {micros(bound)}", taken[name] <= bound
    yield f"get, held: {micros(taken['get, held'])} us, at most {micros(HELD_MAX)}", taken["get, held"] <= HELD_MAX
    for name, peers in PEERS.items():
        for peer in filter(taken.__contains__, peers):
            factor = CHANNEL_FACTOR if name == "channel" else 1
            yield f"{name}: {micros(taken[name])} us, {peer} {micros(taken[peer])}", taken[name] <= factor * taken[peer]


def micros(taken: float) -> str:
    return f"{taken * 1e6:,.1f}" if taken < 1e-5 else f"{taken * 1e6:,.0f}"


def named(size: int) -> str:
    return f"{size} B" if size < KB else f"{size / KB:.0f} KB" if size < MB else f"{size / MB:.3g} MB"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES", help="default: 14 sizes")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of sizes up to 4 MB; fewer for larger ones (default: 12)")
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="write a chart as SVG")
    options = parser.parse_args(arguments)
    figures: Dict[str, Dict[str, float]] = {}
    lines: List[str] = []
    met: List[bool] = []
    with ExitStack() as stack:
        socket = stack.enter_context(daemon())
        echo = Echo(max(CORES))
        stack.callback(echo.close)
        contenders = Contenders(socket, None if options.no_ray else start_ray())
        stack.callback(contenders.close)
        missing = {"ray.put": contenders.ray is None, "iceoryx2": contenders.iceoryx is None}
        columns = [name for name in COLUMNS if not missing.get(name)]
        print(f"{'':9} " + " ".join(f"{name:>14}" for name in ["echo", *columns]), flush=True)
        for size in options.sizes:
            runs, before = contenders.of_size(size)
            rounds, turn = rounds_of(size, options.rounds)
            for name, run in runs.items():
                before.get(name, lambda: None)()
                run()
            # Each echo crosses processors, wherever the scheduler has put the two processes.
            before = {name: free(before.get(name)) for name in runs}
            taken = interleaved({"echo": echo, **runs}, rounds, turn, {"echo": pin, **before})
            figures[str(size)] = taken
            print(f"{named(size):9} " + " ".join(f"{micros(taken[name]):>14}" for name in ["echo", *columns]), flush=True)
            for line, is_met in judged(size, taken):
                lines.append(f"{'met   ' if is_met else 'MISSED'} {named(size):7} {line}")
                met.append(is_met)
        for line, is_met in channels.judged(socket, 25 * options.rounds):
            lines.append(f"{'met   ' if is_met else 'MISSED'} channel {line}")
            met.append(is_met)
    print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print("\n".join([*lines, f"{sum(met)} of {len(met)} bounds met"]))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.chart is not None:
        options.chart.write_text(chart(figures, columns))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
