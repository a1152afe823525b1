"""One program that embeds texts by the model process, beside one with a session of onnxruntime and a tokenizer.

    python benches/embedding_alone.py [--model FOLDER] [--rounds N] [--json FILE]

No other program uses the machine's model, and the cache of results is off. The peer runs at most 32 texts at a time in the order
of their lengths, with onnxruntime's default threads. Calls of both programs alternate, with a pause between them, so that no
thread of one still spins while the other runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, List, Optional

from embedding_programs import VARIANTS, Answer, engines, own_daemon, own_environment, program, text
from small_model import given_or_made

#: The bound of issue 29: the time with Cotensor over the time without.
BOUND = 1.1
#: The number of texts, and the words of each.
SHAPES = [(1, 16), (1, 128), (8, 16), (8, 128), (64, 16), (64, 128)]
#: The time after which the threads of a run have ceased to spin, in seconds.
PAUSE = 0.03
#: The rounds of a shape before those that count.
WARM_UP = 3


def run(given: argparse.Namespace, folder: Path) -> Dict[str, Dict[str, float]]:
    """The medians of each shape: seconds of each variant, and the ratio."""
    with ExitStack() as stack:
        environment = stack.enter_context(own_daemon(folder / "cache", "--no-result-cache"))
        started: Dict[str, "subprocess.Popen[str]"] = {}
        for variant in VARIANTS:
            env = environment if variant == "Cotensor" else own_environment()
            pipe = subprocess.PIPE
            process = subprocess.Popen(program(variant, given.model), env=env, stdin=pipe, stdout=pipe, text=True)
            started[variant] = stack.enter_context(process)
        numbers = iter(range(0, 1 << 40, 1 << 8))

        def timed(variant: str, texts: List[str]) -> Answer:
            process = started[variant]
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(texts) + "\n")
            process.stdin.flush()
            answer = Answer.of(process.stdout.readline())
            time.sleep(PAUSE)
            return answer

        figures = {}
        for count, words in given.shapes or SHAPES:
            times: Dict[str, List[float]] = {variant: [] for variant in VARIANTS}
            rounds = max(5, given.rounds // (1 if count * words <= 1024 else 8))
            for number in range(WARM_UP + rounds):
                begin = next(numbers)
                texts = [text(begin + at, words) for at in range(count)]
                # Each variant is first in every other round.
                order = list(VARIANTS) if number % 2 else list(reversed(VARIANTS))
                answers = {variant: timed(variant, texts) for variant in order}
                answers["Cotensor"].check(answers["onnxruntime"])
                if number >= WARM_UP:
                    for variant in VARIANTS:
                        times[variant].append(answers[variant].seconds)
            medians = {variant: statistics.median(each) for variant, each in times.items()}
            ratios = [ours / theirs for ours, theirs in zip(times["Cotensor"], times["onnxruntime"])]
            figures[f"{count} x {words} words"] = found = {**medians, "ratio": statistics.median(ratios)}
            show(f"{count} x {words} words", found)
        print(f"engine of the model process: {engines(environment)}")
        for process in started.values():
            process.communicate()
    return figures


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder with onnx/model.onnx (default: the size of MiniLM, random weights)")
    parser.add_argument(
        "--rounds", type=int, default=80, metavar="N", help="calls of short texts; an eighth for longer ones (default: 80)"
    )
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="TEXTSxWORDS", help="instead of all")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        given.model = given_or_made(given.model, Path(folder))
        figures = run(given, Path(folder))
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if any(each["ratio"] > BOUND for each in figures.values()) else 0


def show(name: str, figures: Dict[str, float]) -> None:
    shown = "  ".join(f"{variant} {figures[variant] * 1000:8.2f} ms" for variant in VARIANTS)
    met = "met   " if figures["ratio"] <= BOUND else "MISSED"
    print(f"{met} {name:15} {shown}  ratio {figures['ratio']:.2f}, at most {BOUND:.2f}", flush=True)


def shape(given: str) -> "tuple[int, int]":
    texts, words = map(int, given.split("x"))
    return texts, words


if __name__ == "__main__":
    sys.exit(main())
