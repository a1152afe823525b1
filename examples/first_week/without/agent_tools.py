"""Four agents that use the tools of one process: a memory of vectors to add to and to search. Vectors travel as text.

    python agent_tools.py 1000
"""

import multiprocessing
import sys
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

import numpy as np

memory = []


def remember(vector):
    memory.append(np.asarray(vector))
    return len(memory)


def nearest(vector):
    return int(np.argmax(np.stack(memory) @ np.asarray(vector)))


def serve(ports):
    with SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False) as server:
        server.register_function(remember)
        server.register_function(nearest)
        ports.put(server.server_address[1])
        server.serve_forever()


def agent(port, vectors):
    tools = ServerProxy(f"http://127.0.0.1:{port}")
    return [tools.nearest(vector.tolist()) for vector in vectors]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    vectors = np.random.default_rng(0).standard_normal((count, 384))
    ports = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(ports,), daemon=True).start()
    port = ports.get()
    tools = ServerProxy(f"http://127.0.0.1:{port}")
    print([tools.remember(vector.tolist()) for vector in vectors][-1])
    with multiprocessing.Pool(4) as pool:
        print(pool.starmap(agent, [(port, part) for part in np.array_split(vectors, 4)]))
