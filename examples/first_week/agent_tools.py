"""Four agents that use the tools of one process: a memory of vectors to add to and to search. Vectors stay in shared memory.

    python agent_tools.py 1000
"""

import multiprocessing
import sys

import numpy as np

from cotensor.client import SharedTensorClient
from cotensor.provider import SharedTensorProvider

memory = []


def remember(vector):
    memory.append(np.asarray(vector))
    return len(memory)


def nearest(vector):
    return int(np.argmax(np.stack(memory) @ np.asarray(vector)))


def serve():
    provider = SharedTensorProvider()
    provider.share(nearest)
    provider.share(remember)
    provider.serve()


def agent(vectors):
    tools = SharedTensorClient()
    return [tools.nearest(vector) for vector in vectors]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    vectors = np.random.default_rng(0).standard_normal((count, 384))
    multiprocessing.Process(target=serve, daemon=True).start()
    tools = SharedTensorClient(wait=60)  # until the tools are there
    print([tools.remember(vector) for vector in vectors][-1])
    with multiprocessing.Pool(4) as pool:
        print(pool.map(agent, np.array_split(vectors, 4)))
