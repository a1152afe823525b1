"""The parts of cotensor.ray that need no cluster: holdings, imports, submissions, runtime environments, places of streams."""

import contextlib
import importlib
import random
import sys
import tempfile
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from conftest import serving  # noqa: E402
from functions_common import until  # noqa: E402
from ray._private import ray_constants  # noqa: E402

from cotensor import InvalidError, IoError, NotFoundError, RefusedError, UnsupportedError  # noqa: E402
from cotensor.ray import HOOK, runtime_env, submissions, transfer  # noqa: E402
from cotensor.ray.agent import Agent  # noqa: E402
from cotensor.ray.arrival import Whole  # noqa: E402
from cotensor.ray.daemon import socket_of  # noqa: E402
from cotensor.ray.handle import Spec, copied, is_used, spec_of  # noqa: E402
from cotensor.ray.holdings import Holdings  # noqa: E402
from cotensor.ray.hooks import agents_env  # noqa: E402
from cotensor.ray.imports import when_imported  # noqa: E402
from cotensor.ray.models import Described  # noqa: E402
from cotensor.ray.named import Named  # noqa: E402


class Lease:
    id = (1, 1)

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
    assert holdings.copy(KEY) is copy and holdings.want(KEY, b"2") == (True, copy)
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


def test_ids_of_a_former_daemon_name_no_tensor_of_the_next(daemon):
    """A user's names are the same after a restart; the first versions of both daemons are here."""
    agent = object.__new__(Agent)
    agent._holdings = Holdings()
    agent._holdings.begin([b"t"])
    with serving() as other, other.connect() as store, store.empty("weights", (10,), "uint8").publish() as tensor:
        former = list(tensor.id)
    with daemon.connect() as agent._store, agent._store.empty("weights", (10,), "uint8").publish() as tensor:
        with pytest.raises(NotFoundError, match="weights: the tensor was freed, or the daemon that had it has ended"):
            agent._keep(b"t".hex(), former, "weights")
        assert agent._holdings.counts()["kept"] == 0 and not is_used(agent._store, tensor)
        agent._keep(b"t".hex(), list(tensor.id), "weights")
        assert agent._holdings.counts()["kept"] == 1
        agent._holdings.end(b"t")


def test_a_tensor_is_used_while_another_process_leases_it(daemon):
    with daemon.connect() as own, daemon.connect() as other, own.empty("x", (10,), "uint8").publish() as tensor:
        second = own.get("x")
        assert not is_used(own, tensor)
        with other.get("x"):
            assert is_used(own, tensor)
        second.release()
        own.remove("x", id=tensor.id)
        newer = own.empty("x", (10,), "uint8").publish()
        for missing_ok in (True, False):
            with contextlib.nullcontext() if missing_ok else pytest.raises(NotFoundError):
                own.remove("x", id=tensor.id, missing_ok=missing_ok)
        assert own.get("x").id == newer.id


def test_a_copy_that_is_released_on_its_way_to_a_process_is_lost(daemon):
    agent = object.__new__(Agent)
    with daemon.connect() as store:
        released = store.empty("released", (10,), "uint8").publish()
        released.release()
        agent._pulls = SimpleNamespace(pull=lambda *_: released)
        with pytest.raises(NotFoundError, match="weights of node other: .*the node has ended"):
            agent._pull("00", "other", "weights", [1, 1], list(Spec((10,), "uint8")))


def test_tensors_of_devices_are_copied_to_no_other_node_or_store():
    tensor = SimpleNamespace(
        **{"name": "x", "shape": (10,), "dtype": "float32", "kind": "other", "producer": "", "metadata": {}, "device": "cuda:0"},
        members=dict,
    )
    spec, advice = spec_of(tensor), r'is on cuda:0, .*: send numpy.from_dlpack\(tensor, device="cpu"\)'
    assert Spec.of(list(spec)) == spec
    with pytest.raises(UnsupportedError, match=f"x of node other {advice}"):
        object.__new__(Agent)._pull("00", "other", "x", [1, 1], list(spec))
    with pytest.raises(UnsupportedError, match=f"x of node other {advice}"):
        object.__new__(Named)._copied(Described("other", "x", (1, 1), spec, "", ("other", (1, 1))), None)
    with pytest.raises(UnsupportedError, match=f"x {advice}"):
        copied(None, tensor)


def test_a_folder_of_sockets_that_another_user_can_write_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = socket_of("ab" * 28).parent
    assert folder.stat().st_mode & 0o777 == 0o700 and socket_of("ab" * 28).parent == folder
    folder.chmod(0o777)
    with pytest.raises(RefusedError, match="other users can write"):
        socket_of("ab" * 28)
    folder.rename(tmp_path / "other")
    (tmp_path / "other").chmod(0o700)
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(RefusedError, match="other users can write"):
        socket_of("ab" * 28)


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


def test_references_are_kept_while_a_task_is_submitted(monkeypatch):
    class Reference:
        pass

    kept = submissions._kept
    submissions.keep_while_submitted(Reference())
    assert kept == [], "this is not a submission"
    # As a function of Ray that submits.
    names = {"__name__": "ray.actor", "keep": submissions.keep_while_submitted, "Reference": Reference}
    names["go_on"] = threading.Event()
    exec("def submit():\n    keep(Reference())\n    go_on.wait(30)\n", names)

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without, pytest.raises(RuntimeError, match="new thread"):
        without.setattr(threading.Thread, "start", no_thread)
        names["submit"]()
    assert kept == [], "the next one starts the thread"
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
    variable = {ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR: HOOK}
    assert runtime_env() == {key: HOOK, "env_vars": variable} == runtime_env({key: HOOK}) == runtime_env(runtime_env())
    env = runtime_env({key: "my.module.hook", "env_vars": {"A": "1"}, "pip": ["x"]})
    assert env == {key: HOOK, "env_vars": {"A": "1", "COTENSOR_RAY_SETUP_HOOK": "my.module.hook", **variable}, "pip": ["x"]}
    # An agent works for other programs, too.
    assert agents_env() == {"env_vars": {**variable, "COTENSOR_RAY_SETUP_HOOK": ""}}
    for wrong in [print, "hook"]:
        with pytest.raises(InvalidError, match="module.function"):
            runtime_env({key: wrong})


class Gate(Whole):
    """Bytes that come when the gate opens."""

    def __init__(self, data):
        super().__init__(data)
        self.asked, self.is_open = threading.Semaphore(0), threading.Event()

    def wait(self, offset, timeout):
        self.asked.release()
        return self.size if self.is_open.wait(timeout) else offset


class Busy:
    """A server with one place, which a stream has until the gate opens."""

    def __init__(self, monkeypatch):
        self.refused, refuse = [], transfer._refuse
        monkeypatch.setattr(transfer, "_refuse", lambda stream, frame: self.refused.append(frame) or refuse(stream, frame))
        monkeypatch.setattr(transfer, "CONNECTIONS_MAX", 1)
        monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)
        monkeypatch.setattr(transfer._Stream, "_patience", lambda self, is_last: 60)
        self.gate, self.results, self.threads = Gate(b"abc"), [], []
        self.server = transfer.Server("127.0.0.1", lambda name: self.gate)
        self.other = transfer.Server("127.0.0.1", lambda name: Whole(b"abc"))
        self.fetch_later()
        assert self.gate.asked.acquire(timeout=60)

    def fetch(self, *servers):
        target = bytearray(3)
        transfer.fetch([(server.address, b"x") for server in servers], memoryview(target))
        return bytes(target)

    def fetch_later(self):
        self.threads.append(threading.Thread(target=lambda: self.results.append(self.fetch(self.server))))
        self.threads[-1].start()

    def end(self):
        self.gate.is_open.set()
        for thread in self.threads:
            thread.join(60)
        self.server.close()
        self.other.close()


@pytest.fixture
def busy(monkeypatch):
    busy = Busy(monkeypatch)
    yield busy
    busy.end()


def test_a_stream_for_which_a_server_has_no_place_is_refused(busy, monkeypatch):
    monkeypatch.setattr(transfer, "WAITING_MAX", 1)
    busy.fetch_later()
    until(lambda: len(busy.server._waiting) == 1, "a stream waits for the place")
    assert busy.fetch(busy.server, busy.other) == b"abc" and busy.refused == [transfer._BUSY]
    assert (busy.server.sent_bytes, busy.other.sent_bytes) == (0, 3), "the next source has it"
    with monkeypatch.context() as less:
        less.setattr(transfer, "SILENCE_TIMEOUT", 1)
        with pytest.raises(IoError, match="3 bytes of a tensor did not come: .* has no place for this stream"):
            busy.fetch(busy.server)
    before = len(busy.refused)
    busy.fetch_later()
    until(lambda: len(busy.refused) > before + transfer._TRIES, "a stream without another source asks again")
    busy.end()
    assert busy.results == [b"abc"] * 3


def test_a_stream_that_has_waited_for_too_long_for_a_place_is_refused(busy, monkeypatch):
    monkeypatch.setattr(transfer, "IDLE_TIMEOUT", 1.0)
    assert busy.fetch(busy.server, busy.other) == b"abc" and busy.refused == [transfer._BUSY]
    assert (busy.server.sent_bytes, busy.other.sent_bytes, len(busy.server._waiting)) == (0, 3, 0)
