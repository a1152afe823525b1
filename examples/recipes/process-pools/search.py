"""Nearest neighbours in one array, found by the processes of a pool. All of them map the same memory.

    python search.py vectors.npy --processes 4 --start forkserver
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import cotensor

vectors = None


def load(path):
    """Computes the array, and copies it into shared memory once."""
    rows = np.load(path)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return cotensor.connect().put("vectors", rows)


def open_pool(shared, processes, start):
    """A pool whose processes have `vectors`. A tensor is pickled as a handle of about 200 bytes."""
    context = multiprocessing.get_context(start)
    return ProcessPoolExecutor(processes, context, initializer=use, initargs=(shared,))


def use(shared):
    """In each process of the pool, once."""
    global vectors
    vectors = shared.numpy()


def nearest(queries):
    """The index of the nearest vector of each query. `queries` is an array, or a tensor that arrives as a handle."""
    return np.argmax(np.asarray(queries) @ vectors.T, axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vectors", help="a .npy file of shape [vectors, dimensions], float32")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--start", choices=["forkserver", "spawn", "fork"], default="forkserver")
    options = parser.parse_args()
    # A handle holds no lease: this process keeps the tensor while the pool runs.
    shared = load(options.vectors)
    with open_pool(shared, options.processes, options.start) as pool:
        for found in pool.map(nearest, [shared[at : at + 4] for at in range(0, 16, 4)]):
            print(*found)


if __name__ == "__main__":
    main()
