"""A producer of frames at 100 Hz, and a reader that needs each of them. Other programs can read the newest one with `get`.

    python watch.py 3000
"""

import multiprocessing
import sys
import time

import numpy as np

import cotensor


def produce(count):
    store, start = cotensor.connect(), time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number / 100 - time.monotonic()))
        store["first week: frame"] = np.full((480, 640), number, np.float32)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    store = cotensor.connect()
    frames = store.watch(name="first week: frame", every=True)
    producer = multiprocessing.Process(target=produce, args=(count,))
    producer.start()
    numbers = [int(frames.get(timeout=60).tensor.numpy()[0, 0]) for _ in range(count)]
    print(f"{len(numbers)} of {count} versions seen, in order: {numbers == list(range(count))}")
    producer.join()
    store.remove("first week: frame")
