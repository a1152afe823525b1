"""Channels between two processes, beside iceoryx2: the time from a publication to the awake reader, and frames at a fixed rate.

    python benches/channels.py [--frames N] [--json FILE]

The producer writes the time into each frame and publishes it, with one copy of the frame; the reader sleeps until then and takes
the difference. Frames come every 3 ms, of both contenders in turn. iceoryx2 wakes its reader by a listener of an event service.
Then two processes that answer each other's frames at once, and
10,000 frames of 64 KB in one second, with a reader that takes each one. `sizes.py` includes these figures. Release builds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
from measure import Child, Echo, daemon, interleaved

import cotensor

FRAME, SMALL = 600_000, 64 << 10
RATE = 10_000

READER = """
import sys, time
import numpy as np, cotensor
_, socket, name, count, policy = sys.argv
reader = cotensor.connect(socket, autostart=False).read_channel(name, policy=policy)
print("ready", flush=True)
taken, lost = [], 0
for _ in range(int(count)):
    frame = reader.get(timeout=60)
    now = time.monotonic_ns()
    taken.append(now - int(frame.numpy()[:8].view("<i8")[0]))
    lost += frame.lost
    last = frame.number
    del frame
    if last >= int(count):
        break
print(*taken, flush=True)
print(lost, flush=True)
"""

ANSWERER = """
import sys
import numpy as np, cotensor
store = cotensor.connect(sys.argv[1], autostart=False)
answers, frames, empty = store.channel("answer", 8, "uint8", readers=1), store.read_channel("turn"), np.zeros(8, "u1")
print("ready", flush=True)
for frame in frames:
    del frame
    answers.put(empty)
"""

ICEORYX_READER = """
import ctypes, sys, time
import iceoryx2 as iox
_, name, size, count = sys.argv
iox.set_log_level(iox.LogLevel.Error)
node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
service = node.service_builder(iox.ServiceName.new(name)).publish_subscribe(iox.Slice[ctypes.c_uint8]).open_or_create()
event = node.service_builder(iox.ServiceName.new(name)).event().open_or_create()
subscriber, listener = service.subscriber_builder().create(), event.listener_builder().create()
print("ready", flush=True)
taken = []
while len(taken) < int(count):
    listener.timed_wait(iox.Duration.from_secs(60))
    received = subscriber.receive()
    if received is None:
        continue
    now = time.monotonic_ns()
    taken.append(now - ctypes.cast(received.payload().as_ptr(), ctypes.POINTER(ctypes.c_int64))[0])
    del received
print(*taken, flush=True)
"""


def channel(socket: str, count: int) -> Tuple[Callable[[np.ndarray], None], Child]:
    """The function that publishes a frame, and the reader."""
    opened = cotensor.connect(socket).channel("bench", FRAME, "uint8", readers=1)
    child = Child(READER, socket, "bench", str(count), "newest")
    assert child.line() == "ready"
    return lambda frame: (opened.put(frame), None)[1], child


def iceoryx(count: int) -> Optional[Tuple[Callable[[np.ndarray], None], Child]]:
    """As `channel`, for iceoryx2; None without it."""
    try:
        import ctypes

        import iceoryx2 as iox
    except ImportError:
        return None
    iox.set_log_level(iox.LogLevel.Error)
    name = f"cotensor bench {time.monotonic_ns()}"
    node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
    service = node.service_builder(iox.ServiceName.new(name)).publish_subscribe(iox.Slice[ctypes.c_uint8]).open_or_create()
    event = node.service_builder(iox.ServiceName.new(name)).event().open_or_create()
    publisher = service.publisher_builder().initial_max_slice_len(FRAME).create()
    notifier = event.notifier_builder().create()
    child = Child(ICEORYX_READER, name, str(FRAME), str(count))
    assert child.line() == "ready"

    def publish(frame: np.ndarray) -> None:
        loaned = publisher.loan_slice_uninit(FRAME)
        ctypes.memmove(loaned.payload().as_ptr(), frame.ctypes.data, FRAME)
        loaned.assume_init().send()
        notifier.notify()

    # The node and the services last as long as the function.
    publish.kept = (node, service, event)  # type: ignore[attr-defined]
    return publish, child


def latencies(socket: str, count: int) -> Dict[str, float]:
    """Median seconds from the time in a frame to the awake reader, with those of an echo and of a copy of the frame."""
    frame = np.random.default_rng(0).integers(0, 255, FRAME, "u1")
    target = frame.copy()
    ends = {"channel": channel(socket, count)}
    other = iceoryx(count)
    if other is not None:
        ends["iceoryx2"] = other
    echo = Echo()
    units: Dict[str, List[float]] = {"echo": [], "copy": []}
    for _ in range(count):
        for publish, _ in ends.values():
            time.sleep(0.003)
            frame[:8].view("<i8")[0] = time.monotonic_ns()
            publish(frame)
        for name, run in (("echo", echo), ("copy", lambda: np.copyto(target, frame))):
            time.sleep(0.003)
            start = time.perf_counter()
            run()
            units[name].append(time.perf_counter() - start)
    echo.close()
    taken = {name: statistics.median(times) for name, times in units.items()}
    for name, (_, child) in ends.items():
        taken[name] = statistics.median(map(int, child.line().split())) * 1e-9
        child.end()
    return taken


def in_turn(socket: str, count: int) -> Dict[str, float]:
    """Median seconds of a frame and its answer of 8 bytes, for which each process waits, with those of an echo and of a copy."""
    store, frame = cotensor.connect(socket), np.random.default_rng(0).integers(0, 255, FRAME, "u1")
    opened, target = store.channel("turn", FRAME, "uint8", slots=1, readers=1), frame.copy()
    child = Child(ANSWERER, socket)
    assert child.line() == "ready"
    cores = os.sched_getaffinity(0)
    answers, echo = store.read_channel("answer"), Echo(max(cores))
    # The echo crosses processors. A frame and its answer do so by themselves: both processes are awake.
    os.sched_setaffinity(0, cores - {max(cores)} or cores)

    def turn() -> object:
        opened.put(frame)
        return answers.get(timeout=60).number

    taken = interleaved({"turn": turn, "echo": echo, "copy": lambda: np.copyto(target, frame)}, max(1, count // 20), 20)
    os.sched_setaffinity(0, cores)
    opened.close()
    child.end()
    echo.close()
    return taken


def sustained(socket: str) -> Tuple[int, float]:
    """The lost frames among 10,000 of 64 KB, and the seconds that they took."""
    frame = np.zeros(SMALL, "u1")
    opened = cotensor.connect(socket).channel("rate", SMALL, "uint8", slots=64, readers=1)
    child = Child(READER, socket, "rate", str(RATE), "queue")
    assert child.line() == "ready"
    start = time.perf_counter()
    for number in range(RATE):
        while time.perf_counter() - start < number / RATE:
            pass
        frame[:8].view("<i8")[0] = time.monotonic_ns()
        opened.put(frame)
    took = time.perf_counter() - start
    child.line()
    lost = int(child.line())
    child.end()
    return lost, took


def judged(socket: str, count: int) -> Iterator[Tuple[str, bool]]:
    """The figures beside their bounds."""
    taken = latencies(socket, count)
    bound = 0.5 * taken["echo"] + taken["copy"]
    micros = {name: f"{seconds * 1e6:.1f} us" for name, seconds in taken.items()}
    text = f"600 KB to the awake reader: {micros['channel']}; half an echo of {micros['echo']} and a copy of {micros['copy']}"
    yield text, taken["channel"] <= bound
    if "iceoryx2" in taken:
        text = f"600 KB to the awake reader: {micros['channel']}, 1.5 times iceoryx2's {micros['iceoryx2']}"
        yield text, taken["channel"] <= 1.5 * taken["iceoryx2"]
    taken = in_turn(socket, count)
    micros = {name: f"{seconds * 1e6:.1f} us" for name, seconds in taken.items()}
    text = f"600 KB and an answer, in turn: {micros['turn']}; an echo of {micros['echo']} and a copy of {micros['copy']}"
    yield text, taken["turn"] <= taken["echo"] + taken["copy"]
    lost, took = sustained(socket)
    yield f"{RATE} frames of 64 KB in {took:.3f} s, {lost} lost", lost == 0 and took < 1.05


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=300, help="frames for the median (default: 300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        figures: List[Any] = list(judged(stack.enter_context(daemon()), options.frames))
    for text, met in figures:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(met for _, met in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
