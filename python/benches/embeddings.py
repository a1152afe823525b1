"""Embeddings by the one model of the machine, beside a model in each process and beside servers, in one run.

    python benches/embeddings.py [--json FILE] [--requests N] [--processes N] [--long-texts N]
        [--long-seconds S] [--long-model NAME] [--only PART]

The model has the architecture and size of all-MiniLM-L6-v2 (90 MB) and seeded random weights. With `--long-model one-layer`, that
of the long texts has one layer with two of its twelve heads. Requests come from one asynchronous
program on a core of its own, over connections that stay open; texts are distinct, and the cache of results is off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from embedding_peers import ECHO, FASTEMBED, ONNXRUNTIME, SERVERS, Engine
from measure import anonymous, pss
from small_model import make_model

#: A figure, the figure that divides it (or none), its bound, and whether the bound is a minimum.
BOUNDS = [
    ("eight clients, bytes", "eight onnxruntime processes, bytes", 0.35, False),
    ("each further client, bytes", None, 25 << 20, False),
    ("one text, /v1/embeddings", "one text, engine and two echoes", 1.15, False),
    ("64 requests at a time, texts/s", "batches of 64 by hand, texts/s", 0.9, True),
    ("private memory after long texts, bytes", "private memory after loading, bytes", 1.2, False),
]
#: What is measured.
PARTS = ["memory", "requests", "long-texts"]
#: The most tokens of a long text.
LONG_TOKENS = 8000
#: The models of long texts: arguments of `make_model`. Heads have 32 numbers, as in all-MiniLM-L6-v2.
LONG_MODELS: Dict[str, Dict[str, int]] = {"minilm": {}, "one-layer": {"width": 64, "layers": 1, "heads": 2}}
#: The time in seconds after which an idle model process has returned its memory.
IDLE_SECONDS = 4
#: The cores of the load generator and of the servers.
CLIENT_CORE, SERVER_CORE = 0, 1
#: Words of the texts, in the vocabulary of every BERT.
WORDS = "the harbour wakes before a city does while gulls turn over nets and ropes dry on its quay in cold morning light".split()

CLIENT = """
import sys, time
if sys.argv[1] == "numpy":
    import numpy
else:
    import cotensor
    rows = cotensor.Embedder(sys.argv[2]).embed(["a text of client " + sys.argv[3]])
print("ready", flush=True)
sys.stdin.read()
"""


def text(number: int) -> str:
    """A text of its own for each number: 16 words."""
    return " ".join(WORDS[(number // len(WORDS) ** (at % 5) + at * at) % len(WORDS)] for at in range(16)) + f" {number}"


@contextmanager
def processes(commands: Sequence[Sequence[str]], environment: Dict[str, str]) -> Iterator[List[int]]:
    """Processes that have written a line, until the end of the block."""
    started = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("a process ended before it was ready")
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()


def command(*arguments: str, environment: Dict[str, str]) -> Dict[str, Any]:
    """The JSON object that a command prints."""
    run = [sys.executable, "-m", "cotensor", *arguments, "--json"]
    found: Dict[str, Any] = json.loads(subprocess.run(run, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return found


@contextmanager
def daemon(*flags: str) -> Iterator[Dict[str, str]]:
    """The environment of clients of a daemon of its own, with an own cache."""
    with tempfile.TemporaryDirectory(prefix="cot-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COTENSOR_")}
        environment |= {"COTENSOR_SOCKET": f"{folder}/s", "COTENSOR_CACHE": f"{folder}/cache", "XDG_CACHE_HOME": folder}
        serve = [sys.executable, "-m", "cotensor", "serve", "--detach", *flags]
        subprocess.run(serve, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield environment
        finally:
            command("stop", environment=environment)


def memory(model: Path, count: int, figures: Dict[str, float]) -> None:
    """The memory of clients of one model, and of processes with a model each."""

    def clients(number: int) -> List[List[str]]:
        return [[sys.executable, "-c", CLIENT, "cotensor", str(model), str(each)] for each in range(number)]

    def of_daemon(environment: Dict[str, str]) -> int:
        status = command("status", environment=environment)
        return sum(pss(pid) for pid in (status["server"], status["supervisor"], status["models"]) if pid)

    plain = dict(os.environ)
    with daemon() as environment:
        # The first load writes the weights for the engine's kernels into the cache.
        command("embed", str(model), "a text", environment=environment)
        command("stop", environment=environment)
        environment["COTENSOR_AUTOSTART"] = "1"
        sums = {}
        for number in (1, count):
            with processes(clients(number), environment) as pids:
                own, served = sum(map(pss, pids)), of_daemon(environment)
                sums[number] = own + served
        figures["one client, bytes"] = sums[1]
        figures["eight clients, bytes"] = sums[count]
        figures["daemon and model process of them, bytes"] = served
    with processes([[sys.executable, "-c", CLIENT, "numpy"]] * count, plain) as pids:
        figures["import of numpy in each of eight, bytes"] = sum(map(pss, pids)) / count
    figures["each further client, bytes"] = (sums[count] - sums[1]) / (count - 1)
    for name, code in (("onnxruntime", ONNXRUNTIME), ("fastembed", FASTEMBED)):
        with processes([[sys.executable, "-c", code, str(model)]] * count, plain) as pids:
            figures[f"eight {name} processes, bytes"] = sum(map(pss, pids))


class Client:
    """A connection that stays open. As little of HTTP as a load generator needs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self.reader, self.writer, self.head = reader, writer, head

    @staticmethod
    async def open(address: Tuple[str, int], path: str, token: str) -> "Client":
        reader, writer = await asyncio.open_connection(*address)
        host = f"{address[0]}:{address[1]}"
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}Content-Type: application/json\r\n"
        return Client(reader, writer, head)

    async def post(self, body: bytes) -> bytes:
        self.writer.write(f"{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        if not head.startswith("http/1.1 200"):
            raise RuntimeError(f"{head}{(await self.reader.read(1000)).decode()}")
        length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        return await self.reader.readexactly(int(length.split(":")[1]))


#: Address, path and token of a server.
_Place = Tuple[Tuple[str, int], str, str]


async def load(
    place: _Place, body: Callable[[int], bytes], total: int, width: int, seconds: float = math.inf
) -> List[float]:
    """Sends `total` requests, `width` at a time, and none after `seconds`. Returns the time of each that was sent."""
    end = time.monotonic() + seconds
    clients = [await Client.open(*place) for _ in range(width)]
    numbers, times = iter(range(total)), []

    async def work(client: Client) -> None:
        for number in numbers:
            if time.monotonic() > end:
                break
            start = time.perf_counter()
            await client.post(body(number))
            times.append(time.perf_counter() - start)

    await asyncio.gather(*map(work, clients))
    for client in clients:
        client.writer.close()
    return times


@contextmanager
def server(code: str, *arguments: str) -> Iterator[Tuple[str, int]]:
    """The address of a server in Python, on the core of servers."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, {SERVER_CORE})
    try:
        assert process.stdout is not None
        yield "127.0.0.1", int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def requests(model: Path, total: int, figures: Dict[str, float]) -> None:
    """Times of single requests, and texts per second of concurrent ones."""
    offset = iter(range(0, 1 << 40, 1 << 24))

    def texts_from(start: int, name: str) -> Callable[[int], bytes]:
        return lambda number: json.dumps({"model": name, "input": text(start + number)}).encode()

    with ExitStack() as stack:
        # Threads of the engine are as many as cores.
        os.sched_setaffinity(0, {SERVER_CORE})
        environment = stack.enter_context(daemon("--listen", "127.0.0.1:0", "--no-result-cache"))
        listening = command("env", "openai", environment=environment)
        os.sched_setaffinity(0, {CLIENT_CORE})
        base = listening["OPENAI_BASE_URL"].split("//")[1].split("/")[0].split(":")
        cotensor = (base[0], int(base[1])), "/v1/embeddings", listening["OPENAI_API_KEY"]
        echo = stack.enter_context(server(ECHO)), "/", ""
        served = {"Cotensor": cotensor}
        for name, code in SERVERS.items():
            served[name] = stack.enter_context(server(code, str(model))), "/v1/embeddings", ""
        engine = Engine(model)

        def timed(at: _Place, count: int, width: int) -> Tuple[List[float], float]:
            body = texts_from(next(offset), str(model))
            start = time.perf_counter()
            times = asyncio.run(load(at, body, count, width))
            return times, time.perf_counter() - start

        def by_hand(count: int, batch: int) -> Tuple[float, float]:
            """The median time of a batch in this process, on the core of servers."""
            os.sched_setaffinity(0, {SERVER_CORE})
            begin, times = next(offset), []
            start = time.perf_counter()
            for first in range(0, count, batch):
                before = time.perf_counter()
                engine.embed([text(begin + first + each) for each in range(batch)])
                times.append(time.perf_counter() - before)
            taken = time.perf_counter() - start
            os.sched_setaffinity(0, {CLIENT_CORE})
            return statistics.median(times), taken

        for at in served.values():
            timed(at, 70, 64)
            timed(at, 10, 1)
        by_hand(128, 64)
        singles: Dict[str, List[float]] = {name: [] for name in [*served, "echo", "engine"]}
        rates: Dict[str, List[float]] = {name: [] for name in [*served, "by hand"]}
        for _ in range(5):
            for name, at in served.items():
                singles[name] += timed(at, total // 5, 1)[0]
                rates[name].append(total / timed(at, total, 64)[1])
            singles["echo"] += timed(echo, total // 5, 1)[0]
            singles["engine"].append(by_hand(total // 5, 1)[0])
            rates["by hand"].append(total // 64 * 64 / by_hand(total // 64 * 64, 64)[1])
    median = {name: statistics.median(times) for name, times in singles.items()}
    figures["one text, /v1/embeddings"] = median["Cotensor"]
    figures["one text, engine and tokenizer"] = median["engine"]
    figures["one echo over HTTP"] = median["echo"]
    figures["one text, engine and two echoes"] = median["engine"] + 2 * median["echo"]
    for name in SERVERS:
        figures[f"one text, {name}"] = median[name]
    figures["64 requests at a time, texts/s"] = statistics.median(rates["Cotensor"])
    figures["batches of 64 by hand, texts/s"] = statistics.median(rates["by hand"])
    for name in SERVERS:
        figures[f"64 requests at a time, {name}, texts/s"] = statistics.median(rates[name])


def long_texts(model: Path, count: int, seconds: float, figures: Dict[str, float]) -> None:
    """The private memory of the model process before, during and after texts of 1 to 8,000 tokens. Their lengths are distributed
    evenly on a logarithmic scale; the first text has the greatest length. After `seconds`, no further text is sent."""
    choose = random.Random(0)
    with daemon("--listen", "127.0.0.1:0", "--no-result-cache") as environment:
        listening = command("env", "openai", environment=environment)
        base = listening["OPENAI_BASE_URL"].split("//")[1].split("/")[0].split(":")
        place = (base[0], int(base[1])), "/v1/embeddings", listening["OPENAI_API_KEY"]

        def body(number: int) -> bytes:
            # Two tokens are around each text.
            tokens = LONG_TOKENS - 2 if number == 0 else int(LONG_TOKENS ** choose.random())
            return json.dumps({"model": str(model), "input": " ".join(choose.choices(WORDS, k=tokens))}).encode()

        asyncio.run(load(place, lambda _: json.dumps({"model": str(model), "input": "a text"}).encode(), 1, 1))
        time.sleep(IDLE_SECONDS)
        process = command("status", environment=environment)["models"]
        figures["private memory after loading, bytes"] = peak = anonymous(process)
        ended = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not ended.wait(0.02):
                peak = max(peak, anonymous(process))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            sent = asyncio.run(load(place, body, count, 4, seconds))
        finally:
            ended.set()
            watcher.join()
        time.sleep(IDLE_SECONDS)
        figures["long texts"] = len(sent)
        figures["private memory with long texts, peak, bytes"] = peak
        figures["private memory after long texts, bytes"] = anonymous(process)


def shown(name: str, figure: float) -> str:
    if name.endswith("bytes"):
        return f"{figure / (1 << 20):.0f} MiB"
    return f"{figure:.0f}" if name.endswith(("texts/s", "long texts")) else f"{figure * 1000:.2f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    parser.add_argument("--requests", type=int, default=640, metavar="N", help="requests of each round (default: 640)")
    parser.add_argument("--processes", type=int, default=8, metavar="N", help="client processes (default: 8)")
    parser.add_argument("--long-texts", type=int, default=100, metavar="N", help="texts of 1 to 8,000 tokens (default: 100)")
    parser.add_argument("--long-model", choices=LONG_MODELS, default="minilm", help="that reads long texts (default: minilm)")
    parser.add_argument("--long-seconds", type=float, default=600, metavar="S", help="none after this time (default: 600)")
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    given = parser.parse_args()
    figures: Dict[str, float] = {}
    parts = [given.only] if given.only else PARTS
    with tempfile.TemporaryDirectory() as folder:
        if parts != ["long-texts"]:
            model = make_model(Path(folder) / "model")
        if "memory" in parts:
            memory(model, given.processes, figures)
        if "requests" in parts:
            requests(model, given.requests, figures)
        if "long-texts" in parts:
            model = make_model(Path(folder) / "long", positions=8192, **LONG_MODELS[given.long_model])
            long_texts(model, given.long_texts, given.long_seconds, figures)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for name, figure in figures.items():
        print(f"{name:70} {shown(name, figure):>12}")
    missed = 0
    for name, divisor, bound, is_minimum in BOUNDS:
        if name not in figures:
            continue
        value = figures[name] / figures[divisor] if divisor else figures[name]
        met = value >= bound if is_minimum else value <= bound
        missed += not met
        unit = shown(name, value) if divisor is None else f"{value:.2f}"
        limit = shown(name, bound) if divisor is None else f"{bound:.2f}"
        over = f" over {divisor}" if divisor else ""
        print(f"{'met   ' if met else 'MISSED'} {name}{over}: {unit}, {'at least' if is_minimum else 'at most'} {limit}")
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
