"""Bytes of tensors from one node to another, over several TCP streams.

A request is a secret of 32 bytes, a name's length and the name, the tensor's length, an offset and a length. The answer is
frames: a number of bytes and these bytes. A number of 0 is sent while the bytes are not here yet, :data:`_REFUSED` when they
do not come, :data:`_OTHER_SECRET` to a request with another secret, and :data:`_BUSY` when the server has no place for the
stream. A stream that ends early goes on from its byte, at the next source.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple, cast

from ..errors import CotensorError, IoError, NotFoundError, RefusedError
from .arrival import Range, Readable

#: Address, port and secret of a server.
Address = Tuple[str, int, bytes]
#: A server, and the name of the tensor there.
Source = Tuple[Address, bytes]

SECRET_BYTES = 32
_NAME_BYTES_MAX = 256
_HEAD = struct.Struct("!H")
_RANGE = struct.Struct("!QQQ")
_FRAME = struct.Struct("!Q")
_REFUSED = (1 << 64) - 1
_OTHER_SECRET = _REFUSED - 1
_BUSY = _REFUSED - 2
_HEAD_BYTES_MAX = SECRET_BYTES + _HEAD.size + _NAME_BYTES_MAX + _RANGE.size
#: Streams of one transfer, and the bytes from which on one more is used.
STREAMS_MAX = 4
STREAM_BYTES = 8 << 20
#: Bytes for which a stream has memory made at a time. A store makes larger parts of a large tensor.
_POPULATE_BYTES = 2 << 20
#: Bytes that a server passes to the kernel at a time.
_SEND_BYTES = 1 << 20
#: A peer that neither takes nor asks for a byte for so long is given up by a server, in seconds.
IDLE_TIMEOUT = 5.0
#: A transfer without a byte of any source for so long has failed. Each source gets an equal part of it, and the last one at
#: least the second time.
SILENCE_TIMEOUT, _LAST_TIMEOUT = 4.0, 0.5
#: How often a server reports that it waits for bytes itself.
_REPORT_INTERVAL = 0.25
#: A source that brings fewer bytes in its time is left for the next one.
SLOW_BYTES = 64 << 10
#: How often all sources are tried in turn without a byte, and the pause between, in seconds.
_TRIES, _PAUSE = 3, 0.05
#: The pause before a server that had no place is asked again, in seconds.
_BUSY_PAUSE = 0.25
#: The most streams that a server has at a time. A node that gets a tensor has up to four.
CONNECTIONS_MAX = 512
#: The most streams that wait for a place at a server, each for at most :data:`IDLE_TIMEOUT`. Others are refused.
WAITING_MAX = 512
#: The most requests that arrive at a time. The oldest one is given up for another one.
HEADS_MAX = 512


class SilentError(IoError):
    """No source of a transfer has sent a byte in time."""


class _BusyError(OSError):
    """A server has no place for a stream."""


class _Request(NamedTuple):
    name: bytes
    size: int
    at: int
    nbytes: int


class _Waiting(NamedTuple):
    """A stream that waits for a place. Its peer has left at ``end``: it gets no byte until then."""

    end: float
    stream: socket.socket
    request: _Request


class _Head:
    """A request that arrives. One that takes longer than :data:`IDLE_TIMEOUT` is given up."""

    def __init__(self) -> None:
        self.end = time.monotonic() + IDLE_TIMEOUT
        self._data = b""

    def read(self, stream: socket.socket) -> Optional[Tuple[bytes, _Request]]:
        """The secret and the request, when all is here. Raises :class:`EOFError` for what is not a request."""
        data = stream.recv(_HEAD_BYTES_MAX)
        self._data += data
        if not data or len(self._data) > _HEAD_BYTES_MAX:
            raise EOFError("this is not a request")
        start = SECRET_BYTES + _HEAD.size
        if len(self._data) < start:
            return None
        (length,) = _HEAD.unpack_from(self._data, SECRET_BYTES)
        if length > _NAME_BYTES_MAX:
            raise EOFError("the name is too long")
        if len(self._data) < start + length + _RANGE.size:
            return None
        name = self._data[start : start + length]
        return self._data[:SECRET_BYTES], _Request(name, *_RANGE.unpack_from(self._data, start + length))


class _Heads:
    """The requests that arrive, the oldest one first. ``selector`` has their streams."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._heads: Dict[socket.socket, _Head] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, stream: socket.socket) -> None:
        """A request arrives in a new stream."""
        stream.setblocking(False)
        self._selector.register(stream, selectors.EVENT_READ)
        self._heads[stream] = _Head()

    def read(self, stream: socket.socket) -> Optional[Tuple[bytes, _Request]]:
        """The secret and the request of a stream, which the caller closes then. None before all is here. A stream with something
        else is closed."""
        try:
            found = self._heads[stream].read(stream)
        except (OSError, EOFError):
            self._close(stream)
            return None
        if found is not None:
            self._remove(stream)
        return found

    def give_up(self) -> None:
        """Closes the streams of requests that have taken too long, and the oldest ones of too many."""
        now = time.monotonic()
        for stream in list(self._heads):
            if len(self._heads) <= HEADS_MAX and self._heads[stream].end > now:
                return
            self._close(stream)

    def _close(self, stream: socket.socket) -> None:
        self._remove(stream)
        stream.close()

    def _remove(self, stream: socket.socket) -> None:
        self._selector.unregister(stream)
        del self._heads[stream]


class Server:
    """Serves the bytes that ``find`` returns for a name. It raises :class:`NotFoundError` for one that is not here."""

    def __init__(self, host: str, find: Callable[[bytes], Readable]) -> None:
        self._find = find
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._socket = socket.create_server((host, 0))
        self._lock = threading.Lock()
        #: How many threads serve streams, and the streams that wait for one, the oldest one first.
        self._serving = 0
        self._waiting: Deque[_Waiting] = deque()
        #: Bytes that were sent.
        self.sent_bytes = 0
        threading.Thread(target=self._accept, name="transfers", daemon=True).start()

    @property
    def address(self) -> Address:
        """Where another node connects."""
        host, port = self._socket.getsockname()[:2]
        return host, port, self._secret

    def close(self) -> None:
        """Accepts no more streams."""
        with contextlib.suppress(OSError):
            # Wakes the thread that accepts.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        """Reads all requests in one thread, so that a peer without the secret takes no place of another one."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            heads = _Heads(selector)
            while self._socket.fileno() >= 0:
                for key, _ in selector.select(_REPORT_INTERVAL if heads or self._waiting else IDLE_TIMEOUT):
                    stream = cast(socket.socket, key.fileobj)
                    if stream is self._socket:
                        self._add(heads)
                        continue
                    found = heads.read(stream)
                    if found is not None:
                        self._begin(stream, *found)
                heads.give_up()
                self._give_up_waiting()

    def _add(self, heads: _Heads) -> None:
        try:
            stream, _ = self._socket.accept()
            heads.add(stream)
        except OSError:
            # The other node has gone, or this process has no descriptor left.
            time.sleep(_PAUSE)

    def _begin(self, stream: socket.socket, secret: bytes, request: _Request) -> None:
        if not hmac.compare_digest(secret, self._secret):
            # After the whole request: the answer to one that is not read can be lost.
            _refuse(stream, _OTHER_SECRET)
            return
        stream.settimeout(IDLE_TIMEOUT)
        with self._lock:
            has_place = self._serving < CONNECTIONS_MAX
            waits = not has_place and len(self._waiting) < WAITING_MAX
            if has_place:
                self._serving += 1
            elif waits:
                self._waiting.append(_Waiting(time.monotonic() + IDLE_TIMEOUT, stream, request))
        if waits:
            return
        if not has_place:
            _refuse(stream, _BUSY)
            return
        try:
            threading.Thread(target=self._serve, args=(stream, request), name="transfer", daemon=True).start()
        except RuntimeError:
            # This process can have no more threads now. The other node asks again, here or elsewhere.
            stream.close()
            with self._lock:
                self._serving -= 1

    def _give_up_waiting(self) -> None:
        """Refuses the streams that have waited for too long."""
        late: List[socket.socket] = []
        with self._lock:
            while self._waiting and self._waiting[0].end <= time.monotonic():
                late.append(self._waiting.popleft().stream)
        for stream in late:
            _refuse(stream, _BUSY)

    def _serve(self, stream: socket.socket, request: _Request) -> None:
        while True:
            # The other node asks again, here or elsewhere.
            with stream, contextlib.suppress(OSError, EOFError):
                self._answer(stream, request)
            with self._lock:
                if not self._waiting:
                    self._serving -= 1
                    return
                _, stream, request = self._waiting.popleft()

    def _answer(self, stream: socket.socket, request: _Request) -> None:
        name, size, at, nbytes = request
        end = at + nbytes
        try:
            found = self._find(name)
            while at < end:
                here = min(end, found.wait(at, _REPORT_INTERVAL))
                if found.size not in (None, size) or end > size:
                    raise NotFoundError("it has another length")
                stream.sendall(_FRAME.pack(here - at))
                if here > at:
                    self._send(stream, found, at, here)
                at = here
        except NotFoundError:
            stream.sendall(_FRAME.pack(_REFUSED))

    def _send(self, stream: socket.socket, found: Readable, at: int, end: int) -> None:
        # In steps: the timeout of a socket is one of a whole `sendall`.
        for start in range(at, end, _SEND_BYTES):
            with found.part(start, min(end, start + _SEND_BYTES)) as part:
                # Before the other node has them, and asks for the count.
                with self._lock:
                    self.sent_bytes += len(part)
                stream.sendall(part)


def _refuse(stream: socket.socket, frame: int) -> None:
    with stream, contextlib.suppress(OSError):
        stream.sendall(_FRAME.pack(frame))


def ranges_of(size: int) -> List[Range]:
    """The ranges of a tensor, a stream for each."""
    streams = max(1, min(STREAMS_MAX, size // STREAM_BYTES))
    part = -(-size // streams)
    return [(number * part, min((number + 1) * part, size)) for number in range(streams)]


def fetch(
    sources: Sequence[Source],
    target: memoryview,
    advance: Optional[Callable[[int, int], None]] = None,
    populate: Callable[[int, int], None] = lambda start, end: None,
    silence: Optional[float] = None,
) -> None:
    """Fills ``target``, bytes, with those of a tensor.

    A source that ends, does not have the tensor, has no place or is slow is left for the next one. The last one has all bytes.
    ``advance`` is called with the number of each range of :func:`ranges_of` and the byte up to which it has arrived,
    ``populate`` with the start and end of bytes before they are received. Each stream calls both in a thread of its own.
    ``silence`` is the time without a byte, by default :data:`SILENCE_TIMEOUT`.

    Raises :class:`NotFoundError` when the last source has no such tensor, or one of another length, :class:`RefusedError` when
    it has another secret, :class:`SilentError` when no source sends bytes, and the :class:`CotensorError` of ``populate``.
    """
    failed, silence = threading.Event(), SILENCE_TIMEOUT if silence is None else min(silence, SILENCE_TIMEOUT)
    streams = [_Stream(sources, target, bounds, populate, failed, silence) for bounds in ranges_of(len(target))]

    def run(number: int) -> None:
        try:
            streams[number].fetch(lambda at: advance and advance(number, at))
        except BaseException:
            failed.set()
            raise

    if len(streams) == 1:
        run(0)
        return
    with ThreadPoolExecutor(len(streams), "transfer") as pool:
        try:
            list(pool.map(run, range(len(streams))))
        finally:
            # Ctrl-C ends the streams, too.
            failed.set()


class _Stream:
    """The bytes of one range, from one source after the other."""

    def __init__(
        self,
        sources: Sequence[Source],
        target: memoryview,
        bounds: Range,
        populate: Callable[[int, int], None],
        failed: threading.Event,
        silence: float,
    ) -> None:
        self._sources, self._target, self._populate, self._failed = sources, target, populate, failed
        self._size, self._silence = len(target), silence
        self._at, self._end = bounds
        #: The end of the bytes for which ``populate`` was called.
        self._populated = self._at
        #: When bytes came, and what went wrong: without its traceback, whose frames would keep this, and the callers' references
        #: to tokens, until a garbage collection.
        self._came = 0.0
        self._error: Optional[BaseException] = None

    def fetch(self, advance: Callable[[int], object]) -> None:
        self._came, tries = time.monotonic(), 0
        while tries < _TRIES:
            before, is_busy = self._at, False
            for number, source in enumerate(self._sources, 1):
                is_last = number == len(self._sources)
                try:
                    self._read(source, is_last, advance)
                    return
                except CotensorError as error:
                    if is_last or not isinstance(error, (NotFoundError, RefusedError)):
                        raise
                    self._error = error.with_traceback(None)
                except (OSError, EOFError) as error:
                    is_busy = is_busy or isinstance(error, _BusyError)
                    self._error = error.with_traceback(None)
            if self._at > before:
                tries = 0
            elif time.monotonic() - self._came >= self._silence:
                break
            else:
                # A server without a place is asked until the time is over.
                tries += not is_busy
            time.sleep(_BUSY_PAUSE if is_busy else _PAUSE)
        host, port, _ = self._sources[-1][0]
        left = self._end - self._at
        raise SilentError(f"{host}:{port}: {left} bytes of a tensor did not come: {self._error}") from self._error

    def _read(self, source: Source, is_last: bool, advance: Callable[[int], object]) -> None:
        (host, port, secret), name = source
        patience = self._patience(is_last)
        with socket.create_connection((host, port), timeout=patience) as stream:
            head = secret + _HEAD.pack(len(name)) + name
            stream.sendall(head + _RANGE.pack(self._size, self._at, self._end - self._at))
            since, since_at, waits = time.monotonic(), self._at, 1
            frame = 0
            while self._at < self._end:
                if self._failed.is_set():
                    # Another stream has failed, and raises the error.
                    return
                if frame == 0:
                    (frame,) = _FRAME.unpack(_read(stream, _FRAME.size))
                    if frame == _REFUSED:
                        raise NotFoundError("the other node has freed the tensor, or it has another length")
                    if frame == _OTHER_SECRET:
                        why = "its secret is not the one of this request, so that the tensor's handle is lost"
                        raise RefusedError(f"{host}:{port}: the agent has another life: {why}", field="secret")
                    if frame == _BUSY:
                        raise _BusyError(f"{host}:{port} has no place for this stream, and too many wait for one")
                    # A source that waits itself leaves its own source meanwhile.
                    waits = 2 if frame == 0 else waits
                else:
                    if self._at == self._populated:
                        self._populated = min(self._at + _POPULATE_BYTES, self._end)
                        self._populate(self._at, self._populated)
                    count = stream.recv_into(self._target[self._at : min(self._populated, self._at + frame)])
                    if count == 0:
                        raise EOFError("the stream ended")
                    self._at += count
                    frame -= count
                    self._came = time.monotonic()
                    advance(self._at)
                now = time.monotonic()
                if now - since >= patience * waits:
                    if self._at - since_at < (1 if is_last else SLOW_BYTES):
                        raise TimeoutError(f"{host}:{port} sent {self._at - since_at} bytes in {now - since:.1f} s")
                    since, since_at, waits = now, self._at, 1

    def _patience(self, is_last: bool) -> float:
        left = self._silence - (time.monotonic() - self._came)
        return max(_LAST_TIMEOUT if is_last else 0.1, min(left, self._silence / len(self._sources)))


def _read(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise EOFError("the stream ended")
        data += more
    return data
