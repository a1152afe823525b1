"""BERT-base of the demo through the pool of a daemon's client, on the engine that COTENSOR_ENGINE names, and on plain
onnxruntime: one run with its tokenizer, the first answer of a process, and the memory of four processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional

from measure import Child, interleaved, pss, us

import cotensor
from cotensor._native import ResourcePool

PROCESSES = 4

#: Opens the model as a client of the daemon, runs it, and prints the milliseconds until the model is open and until the answer.
WORKER = """
import sys, time
import cotensor
from cotensor._native import ResourcePool
socket, folder, text = sys.argv[1:]
started = time.perf_counter()
model = ResourcePool(folder, store=cotensor.connect(socket)).get_model("text", "bert-base")
model.initialize()
opened = time.perf_counter()
model.run("sentence-embedding", user="bench", text=text)
print((opened - started) * 1e3, (time.perf_counter() - started) * 1e3, flush=True)
sys.stdin.read()
"""


def models() -> Optional[Path]:
    """The folder of the demo's BERT-base, with the folder of the model in it."""
    cache = os.environ.get("COTENSOR_CACHE") or os.path.expanduser("~/.cache/cotensor")
    found = sorted(Path(cache, "models").glob("bert-base-*/bert-base/config.json"))
    return found[-1].parent.parent if found else None


def sentence(number: int) -> str:
    """A text of about 128 tokens, another one for each number."""
    return f"{number} " + "the harbour wakes before the city does " * 16


def run(socket: str, rounds: int, _ray: Any) -> Dict[str, float]:
    folder = models()
    if folder is None:
        print("  left out: no model; `cotensor demo --scenario bert` makes it")
        return {}
    try:
        import numpy
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError as error:
        print(f"  left out: {error}")
        return {}
    taken = processes(socket, str(folder))
    tokenizer = Tokenizer.from_file(str(folder / "bert-base" / "tokenizer.json"))
    plain = onnxruntime.InferenceSession(
        str(folder / "bert-base" / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    names = [port.name for port in plain.get_inputs()]
    number = 0

    def text() -> str:
        nonlocal number
        number += 1
        return sentence(number)

    def by_hand() -> Any:
        encoding = tokenizer.encode(text())
        given = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
        return plain.run(None, {name: numpy.array([given[name]], numpy.int64) for name in names})

    with cotensor.connect(socket) as store:
        model = ResourcePool(str(folder), store=store).get_model("text", "bert-base")

        def pooled() -> Any:
            return model.run("sentence-embedding", user="bench", text=text())

        report = pooled()
        print(f"  engine: {[stage['role'] for stage in report['stages']]} on {os.environ.get('COTENSOR_ENGINE') or 'auto'}")
        by_hand()
        medians = interleaved({"engine, run": pooled, "engine, plain onnxruntime": by_hand}, max(10, rounds // 2))
    for name, value in medians.items():
        print(f"  {name:46} {us(value)}")
    return {**taken, **medians}


def processes(socket: str, folder: str) -> Dict[str, float]:
    """The time until a process has opened the model and answered, and the memory of one process and of four."""

    def together(count: int, first: int) -> int:
        children: List[Child] = [Child(WORKER, socket, folder, sentence(-first - index)) for index in range(count)]
        for child in children:
            times.append([float(part) for part in child.line().split()])
        used = sum(pss(child.process.pid) for child in children)
        for child in children:
            child.end()
        return used

    times: List[List[float]] = []
    together(1, 0)  # The first process fills the cache and the daemon.
    times.clear()
    one, four = together(1, 1), together(PROCESSES, 2)
    opened, answered = times[0]
    print(f"  a second process: the model open after {opened:.0f} ms, the answer after {answered:.0f} ms")
    print(f"  one process {one >> 20} MiB, {PROCESSES} {four >> 20} MiB: {four / one:.2f}")
    return {"engine, one process, bytes": one, "engine, four processes, bytes": four, "engine, open": opened / 1e3}
