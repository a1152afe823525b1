"""A call with 600 KB as argument and 600 KB as result: Cotensor, HTTP with pickles in hexadecimal, a Ray actor. Each computes
on one thread, like a Ray actor."""

from __future__ import annotations

import http.client
from typing import Any, Dict

import torch
from measure import Child, Echo, interleaved, us

from cotensor.client import SharedTensorClient

ELEMENTS = 600 * 1024 // 4

PROVIDER = """
import statistics, sys, time, torch; torch.set_num_threads(1)
import cotensor
from cotensor.provider import SharedTensorProvider
provider = SharedTensorProvider(socket=sys.argv[1], execution_mode="server")
@provider.share(name="double")
def double(x):
    start = time.perf_counter()
    result = x * 2
    taken.append(time.perf_counter() - start)
    return result
@provider.share(name="taken")
def alone():
    return statistics.median(taken)
taken = []
provider.start()
print("ready", flush=True)
sys.stdin.read()
provider.close()
"""

HTTP = """
import pickle, sys, torch; torch.set_num_threads(1)
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        x = pickle.loads(bytes.fromhex(body.decode()))
        answer = pickle.dumps(x * 2).hex().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def run(socket: str, rounds: int, ray: Any) -> Dict[str, float]:
    import pickle

    provider = Child(PROVIDER, socket)
    assert provider.line() == "ready"
    http_server = Child(HTTP)
    connection = http.client.HTTPConnection("127.0.0.1", int(http_server.line()))
    client = SharedTensorClient(socket=socket)
    x = torch.rand(ELEMENTS)
    echo = Echo()

    def over_http() -> Any:
        connection.request("POST", "/", pickle.dumps(x).hex().encode())
        return pickle.loads(bytes.fromhex(connection.getresponse().read().decode()))

    contenders = {
        "bare echo of 200 bytes": echo,
        "cotensor call": lambda: client.call_function("double", [x]),
        "HTTP, pickled and hex-encoded": over_http,
    }
    if ray is not None:

        @ray.remote
        class Doubler:
            def double(self, x: Any) -> Any:
                return x * 2

        actor = Doubler.remote()
        as_numpy = x.numpy()
        ray.get(actor.double.remote(as_numpy))
        contenders["ray actor call"] = lambda: ray.get(actor.double.remote(as_numpy))
    for contender in contenders.values():
        contender()
    taken = interleaved(contenders, rounds, turn=10)
    assert torch.equal(client.call_function("double", [x]), x * 2)
    # The time of the function itself, which is part of every contender: torch on memory that is not in the CPU's caches.
    taken["... of which the function itself"] = client.call_function("taken")
    client.close()
    provider.end()
    http_server.process.kill()
    echo.close()
    for name, value in taken.items():
        print(f"  {name:42} {us(value)}")
    return taken
