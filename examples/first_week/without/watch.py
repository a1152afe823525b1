"""A producer of frames at 100 Hz, and a reader that needs each of them. A pipe copies every frame twice.

    python watch.py 3000
"""

import multiprocessing
import sys
import time

import numpy as np


def produce(sender, count):
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number / 100 - time.monotonic()))
        sender.send(np.full((480, 640), number, np.float32))


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    receiver, sender = multiprocessing.Pipe(duplex=False)
    producer = multiprocessing.Process(target=produce, args=(sender, count))
    producer.start()
    numbers = [int(receiver.recv()[0, 0]) for _ in range(count)]
    print(f"{len(numbers)} of {count} versions seen, in order: {numbers == list(range(count))}")
    producer.join()
