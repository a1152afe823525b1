"""Bytes of tensors from node to node, also of copies that are still on their way."""

import contextlib
import errno
import gc
import os
import random
import signal
import socket
import threading
import time
import weakref

import pytest

pytest.importorskip("ray")

from cotensor import IoError, NotFoundError, RefusedError  # noqa: E402
from cotensor.ray import transfer  # noqa: E402
from cotensor.ray.arrival import PART_BYTES, Arrival, Whole  # noqa: E402

DATA = random.Random(0).randbytes(transfer.STREAM_BYTES * 3 + 5)


@pytest.fixture
def serve():
    servers = []

    def serve(data):
        """A server of the given buffers and readables by their names."""

        def find(name):
            if name not in data:
                raise NotFoundError("freed")
            return Whole(data[name]) if isinstance(data[name], (bytes, bytearray)) else data[name]

        servers.append(transfer.Server("127.0.0.1", find))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def server(serve):
    data = {b"large": DATA, b"small": b"abc", b"empty": b""}
    return serve(data), data


@pytest.fixture
def relay():
    """A proxy of a server that can be told when to end or to pause."""
    sockets = []

    def relay(address, cut):
        """Calls `cut(number, start)` for each stream: after how many bytes it is cut."""
        proxy = socket.create_server(("127.0.0.1", 0))
        sockets.append(proxy)
        count = iter(range(1000))

        def one(near):
            with near, socket.create_connection(address[:2]) as far:
                request = near.recv(4096)
                far.sendall(request)
                left = cut(next(count), int.from_bytes(request[-16:-8], "big"))
                while left > 0:
                    some = far.recv(min(65536, left))
                    if not some:
                        break
                    near.sendall(some)
                    left -= len(some)
                return left

        def accept():
            while True:
                try:
                    near, _ = proxy.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(near,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return (*proxy.getsockname()[:2], address[2])

    yield relay
    for proxy in sockets:
        proxy.close()


@pytest.fixture
def impatient(monkeypatch):
    """A source other than the last one has 0.3 s, which does not depend on the load of the machine for the last one."""
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)
    monkeypatch.setattr(transfer, "_REPORT_INTERVAL", 0.05)
    monkeypatch.setattr(transfer._Stream, "_patience", lambda self, is_last: 60 if is_last else 0.3)


@pytest.fixture
def patient(monkeypatch):
    """No source is left because the machine has other load."""
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)
    monkeypatch.setattr(transfer._Stream, "_patience", lambda self, is_last: 60)


def fetched(sources, length, name=b"large", advance=None):
    target = bytearray(length)
    addresses = sources if isinstance(sources, list) else [sources]
    transfer.fetch([(address, name) for address in addresses], memoryview(target), advance)
    return bytes(target)


def silent():
    """An address that accepts streams and sends nothing."""
    server = socket.create_server(("127.0.0.1", 0))
    return server, (*server.getsockname()[:2], bytes(transfer.SECRET_BYTES))


def nowhere():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return (*closed.getsockname()[:2], bytes(transfer.SECRET_BYTES))


def test_bytes_arrive_over_one_and_several_streams(server):
    server, data = server
    for name, expected in data.items():
        assert fetched(server.address, len(expected), name) == expected
    assert server.sent_bytes == sum(map(len, data.values()))


def test_memory_is_made_before_its_bytes_are_received(serve, relay):
    target, made = bytearray(len(DATA)), []

    def populate(start, end):
        assert target[start:end] == bytes(end - start), "nothing was received there"
        made.append((start, end))

    def advance(number, at):
        assert any(start < at <= end for start, end in made)

    # A stream that goes on elsewhere has its memory.
    address = relay(serve({b"large": DATA}).address, lambda number, start: 1_000_000 if number < 2 else 1 << 30)
    transfer.fetch([(address, b"large")], memoryview(target), advance, populate)
    assert target == DATA
    assert sum(end - start for start, end in made) == len(DATA) and len(made) > len(transfer.ranges_of(len(DATA)))


def test_memory_that_cannot_be_made_ends_the_transfer(server):
    server, _ = server
    asked = []

    def populate(start, end):
        asked.append(start)
        raise IoError("cannot reserve 3 bytes")

    with pytest.raises(IoError, match="^cannot reserve 3 bytes$"):
        transfer.fetch([(server.address, b"small")] * 2, memoryview(bytearray(3)), populate=populate)
    assert asked == [0], "no other source is asked"


def test_freed_tensors_other_lengths_and_wrong_secrets_are_refused(server):
    server, _ = server
    host, port, _ = server.address
    for name, length in [(b"gone", 3), (b"small", 4), (b"small", 2)]:
        with pytest.raises(NotFoundError, match="freed"):
            fetched(server.address, length, name)
    former = (host, port, bytes(transfer.SECRET_BYTES))
    with pytest.raises(RefusedError, match=f"{host}:{port}: the agent has another life: its secret"):
        fetched(former, 3, b"small")
    assert fetched([former, server.address], 3, b"small") == b"abc", "the next source has it"
    with socket.create_connection((host, port)) as stream:
        stream.sendall(server.address[2] + b"\xff\xff")
        assert stream.recv(1) == b"", "a name that is too long"
    assert fetched(server.address, 3, b"small") == b"abc", "the server goes on"


def test_peers_without_the_secret_take_no_place_and_have_a_time_limit(serve, monkeypatch, patient):
    monkeypatch.setattr(transfer, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(transfer, "HEADS_MAX", 4)
    monkeypatch.setattr(transfer, "IDLE_TIMEOUT", 1.0)
    server = serve({b"large": b"abc"})
    with contextlib.ExitStack() as stack:
        host, port, secret = server.address
        peers = [stack.enter_context(socket.create_connection((host, port))) for _ in range(6)]
        for peer in peers:
            peer.settimeout(30)
        assert fetched(server.address, 3) == b"abc" and peers[0].recv(1) == b"", "the oldest one is given up for others"
        with pytest.raises(ConnectionError):
            for _ in range(250):
                # Each byte in time, and not all of them.
                peers[-1].sendall(b"x")
                time.sleep(0.1)
        assert fetched(server.address, 3) == b"abc"
        # A request in parts.
        stream = stack.enter_context(socket.create_connection((host, port)))
        for part in (secret[:7], secret[7:] + b"\0", b"\5lar", b"ge" + b"".join(n.to_bytes(8, "big") for n in (3, 0, 3))):
            stream.sendall(part)
            time.sleep(0.02)
        assert stream.recv(8) == (3).to_bytes(8, "big")


def test_a_cut_stream_goes_on_where_it_ended(serve, relay):
    expected = DATA[: transfer.STREAM_BYTES]
    asked = []

    def cut(number, start):
        asked.append(start)
        return 1_000_000 if number < 2 else 1 << 30

    address = relay(serve({b"large": expected}).address, cut)
    assert fetched(address, len(expected)) == expected
    # A frame of each answer is 8 bytes.
    assert asked == [0, 999_992, 1_999_984]


def test_silent_server_is_given_up(monkeypatch):
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 0.1)
    server, address = silent()
    with server, pytest.raises(IoError, match="did not come"):
        fetched(address, 3)


def test_a_source_that_ends_is_left_for_the_next_one_at_its_byte(serve, relay):
    origin = serve({b"large": DATA})
    asked = []
    parent = relay(origin.address, lambda number, start: 1_000_000)
    grandparent = relay(origin.address, lambda number, start: asked.append(start) or 2_000_000)
    assert fetched([parent, grandparent, origin.address], len(DATA)) == DATA
    starts = [start for start, _ in transfer.ranges_of(len(DATA))]
    assert sorted(asked) == [start + 999_992 for start in starts]
    # No byte is sent twice, beyond those that a cut stream had on their way.
    assert origin.sent_bytes >= len(DATA)


@pytest.mark.parametrize("name", ["refusing", "silent", "ended", "other_length"])
def test_sources_that_bring_nothing_are_left(serve, impatient, name):
    origin = serve({b"large": DATA})
    open_socket, silent_address = silent()
    bad = {
        "refusing": serve({}).address,
        "silent": silent_address,
        "ended": nowhere(),
        "other_length": serve({b"large": DATA + b"more"}).address,
    }[name]
    with open_socket:
        assert fetched([bad, origin.address], len(DATA)) == DATA
    assert origin.sent_bytes == len(DATA)


def test_a_slow_source_is_left_for_the_next_one(serve, impatient):
    class Slow(Whole):
        def wait(self, offset, timeout):
            time.sleep(0.02)
            return offset + 10

    origin, slow = serve({b"large": DATA}), serve({b"large": Slow(DATA)})
    assert fetched([slow.address, origin.address], len(DATA)) == DATA
    assert 0 < slow.sent_bytes < 100_000 and slow.sent_bytes + origin.sent_bytes >= len(DATA)


def test_a_slow_last_source_is_not_given_up(serve, monkeypatch):
    monkeypatch.setattr(transfer._Stream, "_patience", lambda self, is_last: 1.0)

    class Slow(Whole):
        def wait(self, offset, timeout):
            time.sleep(0.2)
            return offset + 1

    assert fetched(serve({b"large": Slow(b"0123456789")}).address, 10) == b"0123456789"


def test_a_source_that_waits_for_too_long_is_left(serve, impatient):
    origin, waits = serve({b"large": DATA}), serve({b"large": Arrival()})
    assert fetched([waits.address, origin.address], len(DATA)) == DATA


def test_when_all_sources_fail_the_error_comes_in_time_and_no_thread_stays(serve):
    sockets, addresses = zip(*[silent() for _ in range(3)])
    start = time.monotonic()
    with pytest.raises(IoError, match="did not come"):
        fetched(list(addresses), len(DATA))
    # The time limits of the sources themselves, and several times the time that is promised.
    assert transfer.SILENCE_TIMEOUT <= time.monotonic() - start < 20
    for one in sockets:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("transfer_")]


def test_a_failed_stream_ends_the_others(serve):
    class Endless(Whole):
        def wait(self, offset, timeout):
            if offset < 100:
                raise NotFoundError("the copy has failed")
            time.sleep(0.02)
            return offset + 1

    with pytest.raises(NotFoundError, match="freed"):
        fetched(serve({b"large": Endless(DATA)}).address, len(DATA))


def test_an_interrupt_ends_the_streams(serve):
    class Endless(Whole):
        def wait(self, offset, timeout):
            time.sleep(0.02)
            return offset + 1

    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        fetched(serve({b"large": Endless(DATA)}).address, len(DATA))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("transfer_")]


def test_streams_wait_for_a_place_at_a_server(serve, monkeypatch, patient):
    class Slow(Whole):
        def wait(self, offset, timeout):
            time.sleep(0.5)
            return super().wait(offset, timeout)

    monkeypatch.setattr(transfer, "CONNECTIONS_MAX", 1)
    assert fetched(serve({b"large": Slow(DATA)}).address, len(DATA)) == DATA, "three streams, one after the other"


def test_a_server_goes_on_after_a_time_without_descriptors(serve, monkeypatch, patient):
    accept, failed = socket.socket.accept, []

    def without(self):
        if len(failed) < 3:
            failed.append(1)
            raise OSError(errno.EMFILE, "too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", without)
    assert fetched(serve({b"large": b"abc"}).address, 3) == b"abc" and len(failed) == 3


def test_a_server_goes_on_after_a_time_without_threads(serve, monkeypatch, patient):
    monkeypatch.setattr(transfer, "CONNECTIONS_MAX", 1)
    server, start, failed = serve({b"large": b"abc"}), threading.Thread.start, []

    def without(self):
        if self.name == "transfer" and len(failed) < 2:
            failed.append(1)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", without)
    assert fetched(server.address, 3) == b"abc" and len(failed) == 2


def test_a_reader_that_takes_its_time_gets_all(serve, monkeypatch):
    """The time limit of a server is one of silence, not of the whole answer."""
    monkeypatch.setattr(transfer, "IDLE_TIMEOUT", 2.0)
    server = serve({b"large": DATA})
    host, port, secret = server.address
    with socket.create_connection((host, port)) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        stream.sendall(secret + b"\0\x05large" + b"".join(n.to_bytes(8, "big") for n in (len(DATA), 0, len(DATA))))
        taken = pause = 0
        while taken < len(DATA) + 8:
            if taken >= pause:
                time.sleep(0.25)
                pause += 2 << 20
            some = stream.recv(1 << 20)
            assert some, f"{taken} bytes"
            taken += len(some)


class Node:
    """A copy in the memory of a file, served while it arrives."""

    def __init__(self, serve, size):
        self.fd = os.memfd_create("copy")
        os.ftruncate(self.fd, size)
        self.size, self.arrival = size, Arrival()
        self.server = serve({b"large": self.arrival})

    def fetch(self, *addresses):
        import mmap

        with mmap.mmap(self.fd, self.size) as memory:
            self.arrival.begin(self.fd, transfer.ranges_of(self.size))
            try:
                with memoryview(memory) as target:
                    transfer.fetch([(address, b"large") for address in addresses], target, self.arrival.advance)
                self.result = bytes(memory)
            except Exception as error:
                self.result = error
            finally:
                self.arrival.end()
                os.close(self.fd)


def test_a_copy_is_served_before_it_is_whole(serve, patient):
    class Gate(Whole):
        """The first half of each range, until the gate opens."""

        opened = threading.Event()

        def wait(self, offset, timeout):
            for start, end in transfer.ranges_of(self.size):
                middle = (start + end) // 2
                if start <= offset < middle:
                    return middle
            return self.size if self.opened.wait(timeout) else offset

    gate = Gate(DATA)
    origin = serve({b"large": gate})
    nodes = [Node(serve, len(DATA)) for _ in range(4)]
    threads = []
    # The last one asks first: nothing is there yet.
    for parent, node in reversed(list(zip([origin, *(one.server for one in nodes)], nodes))):
        threads.append(threading.Thread(target=node.fetch, args=(parent.address, origin.address)))
        threads[-1].start()
    end = time.monotonic() + 30
    # Each of three streams of each node announces its bytes in steps.
    while nodes[-2].server.sent_bytes < len(DATA) // 2 - 9 * PART_BYTES:
        assert time.monotonic() < end, "the last one has not got the first half"
        time.sleep(0.01)
    gate.opened.set()
    for thread in threads:
        thread.join(30)
    assert all(node.result == DATA for node in nodes)
    assert [one.server.sent_bytes for one in nodes] == [len(DATA)] * 3 + [0]
    assert origin.sent_bytes == len(DATA), "once"


def test_a_node_whose_source_fails_passes_on_what_it_has(serve, patient):
    class Broken(Whole):
        def wait(self, offset, timeout):
            if offset % transfer.STREAM_BYTES > PART_BYTES:
                raise NotFoundError("freed")
            return offset + PART_BYTES

    broken, origin = serve({b"large": Broken(DATA)}), serve({b"large": DATA})
    parent, child = Node(serve, len(DATA)), Node(serve, len(DATA))
    thread = threading.Thread(target=child.fetch, args=(parent.server.address, origin.address))
    thread.start()
    parent.fetch(broken.address)
    thread.join(30)
    assert isinstance(parent.result, NotFoundError) and child.result == DATA
    assert parent.server.sent_bytes + origin.sent_bytes == len(DATA), "no byte came twice"


def test_a_source_that_is_left_keeps_nothing_of_the_caller(serve):
    """A token that a caller has ends when the caller drops it, not at the next garbage collection."""

    class Token:
        pass

    refusing, origin = serve({}), serve({b"small": b"abc"})

    def copy():
        token, target = Token(), bytearray(3)
        transfer.fetch([(refusing.address, b"small"), (origin.address, b"small")], memoryview(target))
        assert target == b"abc"
        return weakref.ref(token)

    gc.disable()
    try:
        assert copy()() is None
    finally:
        gc.enable()


def test_memory_of_a_copy_can_be_sealed_while_it_is_served():
    import fcntl

    fd = os.memfd_create("copy", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 10)
    arrival = Arrival()
    arrival.begin(fd, [(0, 10)])
    os.pwrite(fd, b"0123456789", 0)
    arrival.advance(0, 10)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)
    assert arrival.wait(3, 0) == 10 and bytes(arrival.part(0, 10)) == b"0123456789"
