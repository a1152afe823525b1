"""An array of 500 MB that the processes of a pool fill. The program then publishes it, and nothing can change it any more.

    python write_back.py 500
"""

import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import cotensor


def fill(filled, row):
    filled.numpy()[row] = np.sqrt(np.arange(filled.shape[1]) + row)


if __name__ == "__main__":
    shape = (int(sys.argv[1]) if len(sys.argv) > 1 else 500, 250_000)
    filled = cotensor.connect().empty("first week: filled", shape, keep=False)
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(fill, [filled] * shape[0], range(shape[0])))
    tensor = filled.publish()
    print(float(tensor.numpy().sum(dtype=np.float64)))
