"""The time in which 1, 2, 4 and 8 nodes get copies of a tensor of one node, each node in its own network namespace.

    python benches/ray_namespaces.py [--nodes N ...] [--mib N] [--rate MBS] [--delay MS] [--loss PERCENT] [--rounds N]

The nodes are processes with the servers, the trees and the transfers of cotensor.ray, without Ray. Each has a link to a bridge,
with `--rate` in each direction. `all from one` is the time when each node copies from the origin. Needs Linux and root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Dict, List, Optional

import cotensor
from cotensor.errors import CotensorError, NotFoundError
from cotensor.ray import transfer
from cotensor.ray.arrival import Arrival, Readable, Whole
from cotensor.ray.trees import Trees


class Node:
    """A process in a namespace. The origin has the tensor; the others copy it into the memory of a file."""

    def __init__(self, host: str, nbytes: int, is_origin: bool) -> None:
        self._nbytes = nbytes
        self._copies: Dict[bytes, Readable] = {}
        if is_origin:
            block = os.urandom(1 << 20)
            data = (block * (nbytes // len(block) + 1))[:nbytes]
            self._copies[b"origin"] = Whole(data)
        self._server = transfer.Server(host, self._find)

    def _find(self, name: bytes) -> Readable:
        found = self._copies.get(name) or self._copies.get(b"origin")
        if found is None:
            raise NotFoundError("no copy is here")
        return found

    def run(self) -> None:
        """Answers the requests on standard input: the number of a round, and the sources of a copy."""
        host, port, secret = self._server.address
        print(json.dumps([host, port, secret.hex()]), flush=True)
        for line in sys.stdin:
            what, number, sources = json.loads(line)
            name = str(number).encode()
            if what == "expect":
                # Before the other nodes are sent here.
                self._copies = {name: Arrival()}
                print(json.dumps("ready"), flush=True)
            else:
                print(json.dumps(self._copy(name, sources)), flush=True)

    def _copy(self, name: bytes, sources: List[Any]) -> Any:
        addresses = [((host, port, bytes.fromhex(secret)), name) for host, port, secret in sources]
        arrival = self._copies[name]
        assert isinstance(arrival, Arrival)
        fd = os.memfd_create("copy")
        os.ftruncate(fd, self._nbytes)
        try:
            arrival.begin(fd, transfer.ranges_of(self._nbytes))
            with mmap.mmap(fd, self._nbytes) as memory, memoryview(memory) as target:
                transfer.fetch(addresses, target, arrival.advance)
                came = time.monotonic()
                return [came, zlib.crc32(target), self._server.sent_bytes]
        except CotensorError as error:
            return [time.monotonic(), f"{type(error).__name__}: {error}", self._server.sent_bytes]
        finally:
            arrival.end()
            os.close(fd)


def why_not(delay: float = 0.0) -> Optional[str]:
    """Why this process cannot make network namespaces with limited links, None if it can."""
    needed = "root and the programs ip and tc" + (", and the module sch_netem for a delay" if delay else "")
    try:
        with Network(0, 0, 1.0, delay, 1.0, programs=False):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        return f"no network namespaces with limited links here ({needed} are needed): {output.strip()}"


class Network:
    """Nodes in namespaces, joined by a bridge in a namespace of its own. Use it in a `with` statement."""

    def __init__(
        self, nodes: int, nbytes: int, rate: float, delay: float = 0.0, loss: float = 0.0, programs: bool = True
    ) -> None:
        self._prefix = f"cotensor-{os.getpid()}"
        self._rate, self._delay, self._loss = rate, delay, loss
        self._names = [self._name("bridge")]
        self.processes: List[subprocess.Popen[str]] = []
        self.addresses: List[Any] = []
        self._round = 0
        # The same package as here.
        environment = {**os.environ, "PYTHONPATH": str(Path(cotensor.__file__).parents[1])}
        try:
            _ip("netns", "add", self._names[0])
            _ip("-n", self._names[0], "link", "add", "name", "hub", "type", "bridge")
            _ip("-n", self._names[0], "link", "set", "dev", "hub", "up")
            for number in range(nodes + 1):
                self._connect(number)
            for number in range(nodes + 1 if programs else 0):
                arguments = [str(number), str(nbytes)]
                command = ["ip", "netns", "exec", self._name(number), sys.executable, __file__, "--node", *arguments]
                pipe = subprocess.PIPE
                self.processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
            self.addresses = [self._answer(process) for process in self.processes]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes and removes the namespaces."""
        for process in self.processes:
            process.kill()
            process.communicate()
        with contextlib.suppress(FileNotFoundError):
            for name in reversed(self._names):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def copy(self, tree: bool = True, meanwhile: Any = lambda: None) -> List[Any]:
        """All nodes copy at once; what they answer. `meanwhile` runs while they do."""
        self._round += 1
        trees: Trees[int, Any] = Trees()
        others = self.processes[1:]
        self._ask(others, [["expect", self._round, None]] * len(others))
        sources = []
        for number in range(1, len(self.processes)):
            ancestors = trees.join(0, b"token", str(number), self.addresses[number]) if tree else []
            sources.append(["copy", self._round, [*ancestors, self.addresses[0]]])
        found: List[Any] = []
        asking = threading.Thread(target=lambda: found.extend(self._ask(others, sources)))
        self.started = time.monotonic()
        asking.start()
        meanwhile()
        asking.join()
        return found

    def seconds(self, tree: bool = True) -> float:
        """The time until all nodes have a copy."""
        found = self.copy(tree)
        assert len({check for _, check, _ in found}) == 1 and isinstance(found[0][1], int), found
        return float(max(came for came, _, _ in found) - self.started)

    def cut(self, number: int) -> None:
        """Takes the link of a node away. Nothing tells the other nodes."""
        _ip("-n", self._names[0], "link", "set", "dev", f"port{number}", "down")

    def _name(self, which: object) -> str:
        return f"{self._prefix}-{which}"

    def _connect(self, number: int) -> None:
        bridge, name, port = self._names[0], self._name(number), f"port{number}"
        _ip("netns", "add", name)
        self._names.append(name)
        _ip("-n", bridge, "link", "add", "name", port, "type", "veth", "peer", "name", "link", "netns", name)
        _ip("-n", bridge, "link", "set", "dev", port, "master", "hub", "up")
        _ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", "link")
        _ip("-n", name, "link", "set", "dev", "link", "up")
        _ip("-n", name, "link", "set", "dev", "lo", "up")
        bits = f"{self._rate * 8:.3f}mbit"
        for namespace, interface in ((bridge, port), (name, "link")):
            discipline = ["tbf", "rate", bits, "burst", "256kb", "latency", "50ms"]
            if self._delay:
                discipline = ["netem", "delay", f"{self._delay / 2}ms", "rate", bits, "limit", "10000"]
            _tc(namespace, "qdisc", "add", "dev", interface, "root", *discipline)
        if self._loss:
            # A filter of four instructions: a random number below the limit drops the packet.
            limit = int(self._loss / 100 * (1 << 32))
            program = f"4,32 0 0 4294963256,53 1 0 {limit},6 0 0 2,6 0 0 0"
            _tc(name, "qdisc", "add", "dev", "link", "clsact")
            _tc(name, "filter", "add", "dev", "link", "egress", "bpf", "da", "bytecode", program)

    @staticmethod
    def _ask(processes: List[subprocess.Popen[str]], requests: List[Any]) -> List[Any]:
        for process, request in zip(processes, requests):
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        return [Network._answer(process) for process in processes]

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        return json.loads(line) if line else [time.monotonic(), "ended", 0]


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _tc(namespace: str, *arguments: str) -> None:
    _run("ip", "netns", "exec", namespace, "tc", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rate", type=float, default=100, help="of a link, in MB/s")
    parser.add_argument("--delay", type=float, default=0, help="from node to node, in ms")
    parser.add_argument("--loss", type=float, default=0, help="from node to node, in percent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--node", nargs=2, type=int, metavar=("NUMBER", "BYTES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.node is not None:
        number, nbytes = options.node
        Node(f"10.77.0.{number + 1}", nbytes, number == 0).run()
        return 0
    reason = why_not(options.delay)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 77
    print(f"{options.mib} MiB, links of {options.rate:.0f} MB/s, {options.delay} ms, {options.loss} % loss: median seconds")
    print(f"{'nodes':>6}{'Cotensor':>12}{'all from one':>14}", flush=True)
    for nodes in options.nodes:
        with Network(nodes, options.mib << 20, options.rate, options.delay, options.loss) as network:
            times = [[network.seconds(), network.seconds(tree=False)] for _ in range(options.rounds)]
        tree, star = (statistics.median(column) for column in zip(*times))
        print(f"{nodes:>6}{tree:>12.2f}{star:>14.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
