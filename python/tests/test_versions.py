"""A client and a daemon with different protocol versions."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

import cotensor


def send(connection: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack("<IB3x", len(body), 0) + body)


def receive(connection: socket.socket) -> Any:
    def exactly(count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = connection.recv(count - len(received))
            assert part, "the peer closed the connection"
            received += part
        return received

    length, _ = struct.unpack("<IB3x", exactly(8))
    return json.loads(exactly(length))


def hello(protocol: int) -> Any:
    params = {"protocol": protocol, "client": "test"}
    return {"jsonrpc": "2.0", "id": 1, "method": "session.hello", "params": params}


def refusal(path: Path) -> Any:
    """The daemon's answer to a client of another protocol version."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        send(connection, hello(99))
        return receive(connection)


def test_daemon_refuses_another_protocol_version(daemon):
    error = refusal(daemon.socket)["error"]
    assert "client 99" in error["message"] and "daemon has protocol" in error["message"]
    assert error["data"]["field"] == "protocol"


def test_refused_client_raises_unsupported(daemon, tmp_path):
    answer = refusal(daemon.socket)
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                send(connection, {**answer, "id": receive(connection)["id"]})

        other = threading.Thread(target=serve)
        other.start()
        with pytest.raises(cotensor.UnsupportedError, match="protocol .*client 99") as raised:
            cotensor.connect(path)
        other.join()
    assert raised.value.field == "protocol"
