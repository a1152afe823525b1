"""An array of 500 MB that the processes of a pool fill, in shared memory.

    python write_back.py 500
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory

import numpy as np


def fill(name, shape, row):
    memory = SharedMemory(name)
    np.ndarray(shape, np.float32, memory.buf)[row] = np.sqrt(np.arange(shape[1]) + row)
    memory.close()


if __name__ == "__main__":
    shape = (int(sys.argv[1]) if len(sys.argv) > 1 else 500, 250_000)
    memory = SharedMemory(create=True, size=4 * shape[0] * shape[1])
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(fill, [memory.name] * shape[0], [shape] * shape[0], range(shape[0])))
    print(float(np.ndarray(shape, np.float32, memory.buf).sum(dtype=np.float64)))
    memory.close()
    memory.unlink()
