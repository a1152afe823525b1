"""Norms of the parts of one array, computed by the processes of a pool. Each of them gets a copy of the array.

    python pool.py 500
"""

import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np


def norm(rows, part):
    return float(np.linalg.norm(rows[part::4]))


if __name__ == "__main__":
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rows = np.random.default_rng(0).random((megabytes, 250_000), np.float32)
    with ProcessPoolExecutor(4) as pool:
        print(list(pool.map(norm, [rows] * 4, range(4))))
