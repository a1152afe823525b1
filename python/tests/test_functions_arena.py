"""Small arguments and results in connection arenas: arrays, threads, objects, and arrays that the provider keeps."""

from __future__ import annotations

import threading
from typing import Iterator

import numpy as np
import pytest
from functions_common import Program, providing

from cotensor.client import SharedTensorClient

FUNCTIONS = """
kept = []

@provider.share(name="arena.next")
def following(x):
    return x + 1

@provider.share(name="arena.keep")
def keep(x):
    kept.append(x)
    return len(kept)

@provider.share(name="arena.kept")
def which():
    return [int(x[0]) if (x == x[0]).all() else -1 for x in kept]

class Adder:
    def add(self, x, y):
        return {"sum": x + y, "both": [x, y]}

@provider.share(name="arena.adder", managed=True)
def adder():
    return Adder()
"""


@pytest.fixture(scope="module")
def provider(daemon) -> Iterator[Program]:
    with providing(daemon.socket, FUNCTIONS) as running:
        yield running


def test_managed_objects_outlive_calls_and_callers(daemon, provider):
    for first in (0, 50):
        with SharedTensorClient(socket=daemon.socket, tensors="numpy") as client:
            for number in range(first, first + 50):
                client.call_function("arena.keep", [np.full(1000, number, np.int64)])
                for _ in range(5):
                    client.call_function("arena.next", [np.full(1000, -7, np.int64)])
    with SharedTensorClient(socket=daemon.socket) as client:
        assert client.call_function("arena.kept") == list(range(100))


@pytest.mark.parametrize("length", [0, 1, 1000, 150_000, 1 << 20])
def test_threads_get_their_own_results(daemon, provider, length):
    wrong, finished = [], []
    with SharedTensorClient(socket=daemon.socket, tensors="numpy") as client:

        def work(number: int) -> None:
            held = []
            for round in range(20):
                value = 1000 * number + round
                held.append((value, client.call_function("arena.next", [np.full(length, value, np.float32)])))
            wrong.extend(value for value, result in held if not (result == value + 1).all() or result.shape != (length,))
            finished.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [] and len(finished) == 6


def test_methods_of_objects_use_the_arena(daemon, provider):
    with SharedTensorClient(socket=daemon.socket, tensors="numpy") as client:
        with client.call_function("arena.adder") as adder:
            for number in range(100):
                x, y = np.full((3, 4), number, np.float64), np.arange(12.0).reshape(3, 4)
                given = adder.add(x, y)
                assert np.array_equal(given["sum"], x + y), number
                assert np.array_equal(given["both"][0], x) and np.array_equal(given["both"][1], y), number
