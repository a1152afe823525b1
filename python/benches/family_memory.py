"""The private memory of the model process after requests of mixed sizes, for families of models and engines.

    python benches/family_memory.py [--families NAME ...] [--engines NAME ...] [--requests N] [--json FILE]

Models have the architecture and size of published ones, and seeded random weights. Each engine has a daemon of its own. "After
loading" is after the first request, of the least size; the memory is read when the process has been idle for some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import wave
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from embedding_programs import own_daemon, skeleton, text
from measure import anonymous
from small_llama import make_llama

ENGINES = ["rten", "ort", "ort-shared"]
#: Private memory after the requests over that after loading: the bound of issue 29.
BOUND = 1.2
#: The time in seconds after which an idle model process has returned its memory.
IDLE_SECONDS = 4
#: The most tokens that are decoded: random weights never end a text.
NEW_TOKENS_MAX = 8
#: Samples of a second.
RATE = 16000


def image(share: float) -> Dict[str, Any]:
    """A bitmap with up to 2,000 pixels in a row."""
    width, height = int(32 + 1968 * share), int(32 + 1468 * share)
    row = bytes(width * 3 + -width * 3 % 4)
    size = len(row) * height
    file = struct.pack("<2sIHHI", b"BM", 54 + size, 0, 0, 54)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, size, 1, 1, 0, 0)
    return {"image": file + head + bytes(os.urandom(1)) * size}


def audio(share: float) -> Dict[str, Any]:
    """Noise of 1 to 30 seconds."""
    with tempfile.TemporaryFile() as file:
        with wave.open(file, "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(RATE)
            sound.writeframes(os.urandom(2 * int(RATE * (1 + 29 * share))))
        file.seek(0)
        return {"audio": file.read(), "max_new_tokens": NEW_TOKENS_MAX}


def words(share: float) -> Dict[str, Any]:
    """A text of 4 to 400 words."""
    return {"text": text(random.getrandbits(30), int(4 * 100**share))}


@dataclass
class Family:
    """How a model is made in a folder, its task, and a request of a size from 0 to 1."""

    make: Callable[[Path], Path]
    task: str
    request: Callable[[float], Dict[str, Any]]


def decoded(share: float) -> Dict[str, Any]:
    """The text that a decoder reads."""
    return {**words(share), "max_new_tokens": NEW_TOKENS_MAX}


FAMILIES = {
    "bert": Family(partial(skeleton, "bert-base"), "sentence-embedding", words),
    "vit": Family(partial(skeleton, "vit-base"), "image-embedding", image),
    "clip": Family(partial(skeleton, "clip-vit-b16"), "image-embedding", image),
    "whisper": Family(partial(skeleton, "whisper-base"), "transcription", audio),
    "t5": Family(partial(skeleton, "t5-base"), "translation", decoded),
    "llama": Family(lambda folder: make_llama(folder / "llama"), "text-generation", decoded),
}


def measured(engine: str, family: Family, model: Path, cache: Path, requests: int) -> Dict[str, float]:
    """The figures of one family and engine."""
    from cotensor import connect
    from cotensor._native import Functions

    choose = random.Random(0)
    with own_daemon(cache, "--no-result-cache", engine=engine) as environment:
        with connect(environment["COTENSOR_SOCKET"]) as store:
            store.start_models()
            functions = Functions(store, tensors="numpy")

            def run(share: float) -> None:
                functions.call("model.run", kwargs={"model": str(model), "task": family.task, **family.request(share)})

            run(0)
            time.sleep(IDLE_SECONDS)
            command = [sys.executable, "-m", "cotensor", "status", "--json"]
            status = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
            process = status["models"]
            loaded = anonymous(process)
            # The greatest size comes first, and last: nothing later returns what it leaves.
            for share in [1, *(choose.random() for _ in range(requests - 2)), 1]:
                run(share)
            time.sleep(IDLE_SECONDS)
            after = anonymous(process)
    return {"after loading, bytes": loaded, "after the requests, bytes": after, "ratio": after / loaded}


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="default: all")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="default: all")
    parser.add_argument("--requests", type=int, default=50, metavar="N", help="requests of mixed sizes (default: 50)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    given = parser.parse_args(arguments)
    figures: Dict[str, Dict[str, float]] = {}
    for name in given.families:
        family = FAMILIES[name]
        # The weights of one family at a time are on the disk.
        with tempfile.TemporaryDirectory() as folder:
            model = family.make(Path(folder))
            for engine in given.engines:
                found = measured(engine, family, model, Path(folder) / "cache", given.requests)
                figures[f"{name}, {engine}"] = found
                loaded, after, ratio = found.values()
                met = "met   " if ratio <= BOUND else "MISSED"
                shown = f"{loaded / (1 << 20):5.0f} MiB, {after / (1 << 20):5.0f} MiB after {given.requests} requests"
                print(f"{met} {name:8} {engine:10} {shown}: {ratio:.2f}, at most {BOUND:.2f}", flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(each["ratio"] > BOUND for each in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
