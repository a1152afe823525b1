"""A client and a daemon that speak different protocols."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

import cotensor


def say(connection: socket.socket, message: Any) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack("<IB3x", len(body), 0) + body)


def hear(connection: socket.socket) -> Any:
    def exactly(count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = connection.recv(count - len(received))
            assert part, "the other end closed the connection"
            received += part
        return received

    length, _ = struct.unpack("<IB3x", exactly(8))
    return json.loads(exactly(length))


def hello(protocol: int) -> Any:
    params = {"protocol": protocol, "client": "test"}
    return {"jsonrpc": "2.0", "id": 1, "method": "session.hello", "params": params}


def refusal(path: Path) -> Any:
    """What the daemon answers to a client of another time."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        say(connection, hello(99))
        return hear(connection)


def test_a_daemon_refuses_a_client_of_another_protocol_and_names_both(daemon):
    error = refusal(daemon.socket)["error"]
    assert "client 99" in error["message"] and "daemon has protocol" in error["message"]
    assert error["data"]["field"] == "protocol"


def test_a_client_that_is_refused_says_so(daemon, tmp_path):
    answer = refusal(daemon.socket)
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                say(connection, {**answer, "id": hear(connection)["id"]})

        other = threading.Thread(target=serve)
        other.start()
        with pytest.raises(cotensor.UnsupportedError, match="protocol .*client 99") as raised:
            cotensor.connect(path)
        other.join()
    assert raised.value.field == "protocol"
