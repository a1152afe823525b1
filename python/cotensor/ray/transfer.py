"""Bytes of tensors from one node to another, over several TCP streams.

A request is a secret of 32 bytes, a token's length and the token, an offset and a length. The answer is one byte, 0 for bytes
that follow and 1 for a refusal. A stream that ends early is opened again from the byte at which it ended.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional, Tuple

from ..errors import IoError, NotFoundError

#: Address, port and secret of a server.
Address = Tuple[str, int, bytes]

SECRET_BYTES = 32
_TOKEN_BYTES_MAX = 256
_HEAD = struct.Struct("!H")
_RANGE = struct.Struct("!QQ")
_SENT, _REFUSED = b"\0", b"\1"
#: Streams of one transfer, and the bytes from which on one more is used.
STREAMS_MAX = 4
STREAM_BYTES = 8 << 20
#: A stream without a byte for so long is broken, in seconds.
IDLE_TIMEOUT = 5.0
#: How often a stream is opened again.
_TRIES = 3
#: The most streams that a server has at a time.
CONNECTIONS_MAX = 64


class Server:
    """Serves the buffer of bytes that ``find`` returns for a token. It raises :class:`NotFoundError` for one that has ended."""

    def __init__(self, host: str, find: Callable[[bytes], Any]) -> None:
        self._find = find
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._socket = socket.create_server((host, 0))
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
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
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                stream.close()
                continue
            threading.Thread(target=self._serve, args=(stream,), name="transfer", daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        try:
            with stream:
                stream.settimeout(IDLE_TIMEOUT)
                self._answer(stream)
        except (OSError, EOFError):
            # The other node asks again.
            pass
        finally:
            self._places.release()

    def _answer(self, stream: socket.socket) -> None:
        if not hmac.compare_digest(_read(stream, SECRET_BYTES), self._secret):
            return
        (length,) = _HEAD.unpack(_read(stream, _HEAD.size))
        if length > _TOKEN_BYTES_MAX:
            return
        token = _read(stream, length)
        offset, count = _RANGE.unpack(_read(stream, _RANGE.size))
        try:
            found = self._find(token)
        except NotFoundError:
            stream.sendall(_REFUSED)
            return
        with memoryview(found) as data:
            if offset + count > len(data):
                stream.sendall(_REFUSED)
                return
            stream.sendall(_SENT)
            with data[offset : offset + count] as part:
                stream.sendall(part)
        self.sent_bytes += count


def fetch(address: Address, token: bytes, target: memoryview) -> None:
    """Fills ``target``, bytes, with those of the tensor of ``token``.

    Raises :class:`NotFoundError` when the server has no such tensor, or one of another length, and :class:`IoError` when no
    bytes come.
    """
    size = len(target)
    streams = max(1, min(STREAMS_MAX, size // STREAM_BYTES))
    part = -(-size // streams)
    ranges = [(number * part, min((number + 1) * part, size)) for number in range(streams)]

    def one(bounds: Tuple[int, int]) -> None:
        _fetch_range(address, token, target, bounds)

    if len(ranges) == 1:
        one(ranges[0])
        return
    with ThreadPoolExecutor(len(ranges), "transfer") as pool:
        list(pool.map(one, ranges))


def _fetch_range(address: Address, token: bytes, target: memoryview, bounds: Tuple[int, int]) -> None:
    host, port, secret = address
    at, end = bounds
    error: Optional[BaseException] = None
    for _ in range(_TRIES):
        try:
            with socket.create_connection((host, port), timeout=IDLE_TIMEOUT) as stream:
                stream.sendall(secret + _HEAD.pack(len(token)) + token + _RANGE.pack(at, end - at))
                if _read(stream, 1) == _REFUSED:
                    raise NotFoundError("the other node has freed the tensor, or it has another length")
                while at < end:
                    count = stream.recv_into(target[at:end])
                    if count == 0:
                        raise EOFError("the stream ended")
                    at += count
                return
        except (OSError, EOFError) as caught:
            error = caught
    raise IoError(f"{host}:{port}: {end - at} bytes of a tensor did not come: {error}") from error


def _read(stream: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise EOFError("the stream ended")
        data += more
    return data
