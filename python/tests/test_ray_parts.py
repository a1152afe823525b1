"""The parts of cotensor.ray that need no cluster: holdings, transfers, imports, submissions, runtime environments."""

import importlib
import random
import socket
import sys
import threading

import pytest

pytest.importorskip("ray")

from cotensor import InvalidError, IoError, NotFoundError  # noqa: E402
from cotensor.ray import HOOK, runtime_env, submissions, transfer  # noqa: E402
from cotensor.ray.holdings import Holdings  # noqa: E402
from cotensor.ray.imports import when_imported  # noqa: E402


class Lease:
    def __init__(self):
        self.released = 0

    def release(self):
        self.released += 1


KEY = ("node", (1, 1))


def test_tensor_is_kept_until_its_token_ends():
    holdings, lease = Holdings(), Lease()
    holdings.begin([b"t"])
    holdings.keep(b"t", lease)
    assert holdings.serve(b"t", "a") is lease and holdings.serve(b"t", "b") is lease
    assert lease.released == 0
    assert holdings.end(b"t") == {"a", "b"}
    assert lease.released == 1 and holdings.end(b"t") == set()
    with pytest.raises(NotFoundError, match="freed"):
        holdings.serve(b"t", "a")


def test_repeated_keep_of_a_token_keeps_one_lease():
    holdings, first, second = Holdings(), Lease(), Lease()
    holdings.begin([b"t"])
    holdings.keep(b"t", first)
    holdings.keep(b"t", second)
    assert (first.released, second.released) == (1, 0)


def test_copy_is_kept_for_all_tokens_that_asked_for_it():
    holdings, copy = Holdings(), Lease()
    assert holdings.want(KEY, b"1") == (True, None)
    holdings.add_copy(KEY, copy)
    assert holdings.want(KEY, b"2") == (True, copy)
    holdings.end_copies(b"1")
    assert holdings.want(KEY, b"2") == (False, copy) and copy.released == 0
    holdings.end_copies(b"2")
    assert holdings.counts()["copies"] == 0 and copy.released == 1


def test_copy_whose_token_ended_on_its_way_is_released():
    holdings, copy = Holdings(), Lease()
    holdings.want(KEY, b"1")
    holdings.end_copies(b"1")
    holdings.add_copy(KEY, copy)
    assert holdings.counts()["copies"] == 0 and copy.released == 1


def test_tokens_of_copies_are_known_by_their_nodes():
    holdings = Holdings()
    for node, token in [("node", b"1"), ("node", b"2"), ("other", b"3")]:
        holdings.want((node, (int(token), 1)), token)
    assert {node: sorted(tokens) for node, tokens in holdings.wanted().items()} == {"node": [b"1", b"2"], "other": [b"3"]}
    holdings.end_copies(b"3")
    assert set(holdings.wanted()) == {"node"}


def test_token_that_has_ended_or_is_of_a_former_agent_keeps_nothing():
    holdings, lease = Holdings(), Lease()
    holdings.begin([b"1", b"2"])
    holdings.end(b"1")
    assert holdings.ended([b"1", b"2", b"3"]) == [b"1", b"3"]
    for token in (b"1", b"3"):
        with pytest.raises(NotFoundError, match="restarted"):
            holdings.keep(token, lease)
    assert lease.released == 2 and holdings.counts()["kept"] == 0


def test_every_order_of_events_ends_with_nothing():
    for seed in range(300):
        chance = random.Random(seed)
        holdings, leases, tokens = Holdings(), [], [bytes([number]) for number in range(4)]
        for _ in range(40):
            token, key = chance.choice(tokens), ("node", (chance.randrange(2), 1))
            event = chance.randrange(5)
            if event < 2:
                leases.append(Lease())
                holdings.begin([token])
                holdings.keep(token, leases[-1]) if event == 0 else holdings.add_copy(key, leases[-1])
            elif event == 2:
                holdings.want(key, token)
            else:
                (holdings.end if event == 3 else holdings.end_copies)(token)
        for token in tokens:
            holdings.end(token)
            holdings.end_copies(token)
        assert holdings.counts() == {"kept": 0, "copies": 0}, seed
        assert all(lease.released == 1 for lease in leases), seed


@pytest.fixture
def server():
    data = {b"large": random.Random(0).randbytes(transfer.STREAM_BYTES * 3 + 5), b"small": b"abc", b"empty": b""}

    def find(token):
        if token not in data:
            raise NotFoundError("freed")
        return data[token]

    server = transfer.Server("127.0.0.1", find)
    yield server, data
    server.close()


def fetched(address, token, length):
    target = bytearray(length)
    transfer.fetch(address, token, memoryview(target))
    return bytes(target)


def test_bytes_arrive_over_one_and_several_streams(server):
    server, data = server
    for token, expected in data.items():
        assert fetched(server.address, token, len(expected)) == expected
    assert server.sent_bytes == sum(map(len, data.values()))


def test_freed_tensors_other_lengths_and_wrong_secrets_are_refused(server):
    server, _ = server
    host, port, _ = server.address
    for token, length in [(b"gone", 3), (b"small", 4)]:
        with pytest.raises(NotFoundError, match="freed"):
            fetched(server.address, token, length)
    with pytest.raises(IoError, match=f"{host}:{port}: 3 bytes"):
        fetched((host, port, bytes(transfer.SECRET_BYTES)), b"small", 3)
    with socket.create_connection((host, port)) as stream:
        stream.sendall(server.address[2] + b"\xff\xff")
        assert stream.recv(1) == b"", "a token that is too long"
    assert fetched(server.address, b"small", 3) == b"abc", "the server goes on"


def test_a_cut_stream_goes_on_where_it_ended(server):
    server, data = server
    asked = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def cut():
        while True:
            try:
                near, _ = proxy.accept()
            except OSError:
                return
            with near, socket.create_connection(server.address[:2]) as far:
                request = near.recv(4096)
                asked.append(int.from_bytes(request[-16:-8], "big"))
                far.sendall(request)
                left = 1_000_000 if len(asked) < 3 else 1 << 30
                while left > 0:
                    some = far.recv(min(65536, left))
                    if not some:
                        break
                    near.sendall(some)
                    left -= len(some)

    threading.Thread(target=cut, daemon=True).start()
    expected = data[b"large"][: transfer.STREAM_BYTES]
    data[b"large"] = expected
    address = (*proxy.getsockname()[:2], server.address[2])
    assert fetched(address, b"large", len(expected)) == expected
    # A byte of each answer is its status.
    assert asked == [0, 999_999, 1_999_998]
    proxy.close()


def test_silent_server_is_given_up(monkeypatch):
    monkeypatch.setattr(transfer, "IDLE_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(IoError, match="did not come"):
            fetched((*silent.getsockname()[:2], bytes(transfer.SECRET_BYTES)), b"t", 3)


def test_functions_run_when_modules_are_imported(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("value = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    when_imported("imported_later", lambda module: seen.append(module.value))
    when_imported("never_there", seen.append)
    assert seen == []
    module = importlib.import_module("imported_later")
    assert seen == [5] and type(module.__spec__.loader).__name__ == "SourceFileLoader"
    when_imported("imported_later", lambda module: seen.append(module.value))
    assert seen == [5, 5]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_there")
    del sys.modules["imported_later"]


def test_references_are_kept_while_a_task_is_submitted():
    class Reference:
        pass

    kept = submissions._kept
    submissions.keep_while_submitted(Reference())
    assert kept == [], "this is no submission"
    # As a function of Ray that submits.
    names = {"__name__": "ray.actor", "keep": submissions.keep_while_submitted, "Reference": Reference}
    names["go_on"] = threading.Event()
    exec("def submit():\n    keep(Reference())\n    go_on.wait(30)\n", names)
    thread = threading.Thread(target=names["submit"])
    thread.start()
    for _ in range(5):
        threading.Event().wait(0.15)
        assert len(kept) == 1
    names["go_on"].set()
    thread.join()
    for _ in range(300):
        if not kept:
            break
        threading.Event().wait(0.1)
    assert kept == []


def test_runtime_env_has_the_hooks_of_cotensor_and_of_the_program():
    key = "worker_process_setup_hook"
    assert runtime_env() == {key: HOOK} == runtime_env({key: HOOK})
    env = runtime_env({key: "my.module.hook", "env_vars": {"A": "1"}, "pip": ["x"]})
    assert env == {key: HOOK, "env_vars": {"A": "1", "COTENSOR_RAY_SETUP_HOOK": "my.module.hook"}, "pip": ["x"]}
    for wrong in [print, "hook"]:
        with pytest.raises(InvalidError, match="module.function"):
            runtime_env({key: wrong})
