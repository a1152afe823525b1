"""Copies of other nodes' tensors in a daemon's store, without a cluster."""

import os
import random
import socket
import threading
import time

import pytest

pytest.importorskip("ray")

from functions_common import until  # noqa: E402

from cotensor import IoError, NotFoundError, OverBudgetError  # noqa: E402
from cotensor.ray import pulls, transfer  # noqa: E402
from cotensor.ray.arrival import Whole  # noqa: E402
from cotensor.ray.handle import Spec, own_name, spec_of  # noqa: E402
from cotensor.ray.holdings import Holdings  # noqa: E402
from cotensor.ray.orphans import Orphans  # noqa: E402
from cotensor.ray.pulls import Pulls, TensorTarget, whole  # noqa: E402
from cotensor.ray.trees import Trees  # noqa: E402

DATA = random.Random(1).randbytes(transfer.STREAM_BYTES * 2)
SIZE = len(DATA)
KEY = ("origin", (7, 1))
TOKEN = "aa" * 28


class Origin:
    """The agent of the tensor's node."""

    def __init__(self):
        self.data, self.left = DATA, []
        self.trees = Trees()
        self.server = transfer.Server("127.0.0.1", self.find)
        self.address = self.server.address

    def find(self, name):
        if name != bytes.fromhex(TOKEN):
            raise NotFoundError("freed")
        return Whole(self.data)


class Node:
    """A node's agent: it offers what its pulls need of another one."""

    def __init__(self, name, store, origin):
        self.name, self.store, self.origin, self.holdings = name, store, origin, Holdings()
        self.pulls, self.orphans, self.others = Pulls(self.holdings, self), Orphans(store, 2), []
        self.server = transfer.Server("127.0.0.1", self.pulls.find)

    def join(self, node, token, name):
        others = self.origin.trees.join(KEY, bytes.fromhex(token), self.name, self.server.address)
        return [*others, self.origin.address]

    def leave(self, node, token):
        self.origin.trees.leave(bytes.fromhex(token), self.name)
        self.origin.left.append(self.name)

    def copies(self, key, timeout):
        """As an agent asks the others."""
        found = [one for one in self.others if any(copy is not None for copy in (one.holdings.copy(key), one.orphan(key)))]
        return (one.server.address for one in found)

    def orphan(self, key):
        return self.orphans.lease(key)

    def pull(self, token=TOKEN, count=SIZE, keep=False):
        def target():
            return TensorTarget(Spec((count,), "uint8").builder(self.store, own_name(), keep=keep))

        return self.pulls.pull(KEY, token, "weights", target)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No source is left because the machine has other load."""
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)


@pytest.fixture
def origin():
    origin = Origin()
    yield origin
    origin.server.close()


@pytest.fixture
def nodes(daemon, origin):
    with daemon.connect() as store:
        nodes = [Node(name, store, origin) for name in "abcd"]
        yield nodes
        for node in nodes:
            node.holdings.end_copies(bytes.fromhex(TOKEN))
            assert node.holdings.counts() == {"kept": 0, "copies": 0}
            node.server.close()


def test_nodes_that_copy_at_once_pass_the_tensor_on(nodes, origin):
    threads = [threading.Thread(target=node.pull) for node in nodes for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [bytes(node.pull()) for node in nodes] == [DATA] * 4
    assert [node.pulls.count for node in nodes] == [1] * 4
    assert origin.server.sent_bytes == len(DATA)
    assert sum(node.server.sent_bytes for node in nodes) == 3 * len(DATA)


def test_a_node_that_has_a_copy_serves_it_until_it_is_released(nodes, origin):
    first, second, third, _ = nodes
    first.pull()
    second.pull()
    assert (origin.server.sent_bytes, first.server.sent_bytes) == (len(DATA), len(DATA))
    second.holdings.end_copies(bytes.fromhex(TOKEN))
    third.pull()
    assert (second.server.sent_bytes, first.server.sent_bytes) == (0, 2 * len(DATA)), "the next source has it"


def test_a_tensor_that_comes_under_a_second_name_is_passed_on_too(nodes, origin):
    """The copy of a name is not a copy of a handle; other nodes read either."""
    first, second, *_ = nodes

    def target():
        return TensorTarget(Spec((SIZE,), "uint8").builder(first.store, "weights", keep=True))

    with first.pulls.arriving(KEY) as arrival:
        assert bytes(first.pulls.receive(arrival, KEY, TOKEN, "weights", target)) == DATA
        second.pull()
    assert (origin.server.sent_bytes, first.server.sent_bytes) == (SIZE, SIZE)
    assert first.holdings.counts()["copies"] == 0 and first.pulls._arrivals == {}


def test_copies_that_wait_for_one_node_delay_none_from_another(nodes, origin):
    node, gate, began = nodes[0], threading.Event(), threading.Semaphore(0)

    class Gate(Whole):
        def wait(self, offset, timeout):
            began.release()
            return self.size if gate.wait(timeout) else offset

    slow = transfer.Server("127.0.0.1", lambda name: Gate(DATA[:10]))
    joined = node.join
    node.join = lambda name, token, what: [slow.address] if name == "slow" else joined(name, token, what)

    def pull(number):
        def target():
            return TensorTarget(Spec((10,), "uint8").builder(node.store, own_name(), keep=False))

        node.pulls.pull(("slow", (number, 1)), TOKEN, "x", target)

    threads = [threading.Thread(target=pull, args=(number,)) for number in range(pulls._FROM_ONE_NODE + 2)]
    for thread in threads:
        thread.start()
    for _ in range(pulls._FROM_ONE_NODE):
        assert began.acquire(timeout=60)
    assert len(node.pulls._places) == 1
    assert bytes(node.pull()) == DATA, "while no copy of the other node comes"
    gate.set()
    for thread in threads:
        thread.join(60)
    assert node.pulls.count == len(threads) + 1 and len(node.pulls._places) == 0
    slow.close()


def test_copies_that_wait_for_a_silent_node_fail_with_the_first(nodes, monkeypatch):
    node, asked, began = nodes[0], [], threading.Semaphore(0)
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 2)
    silent = socket.create_server(("127.0.0.1", 0), backlog=64)
    node.join = lambda *_: began.release() or [(*silent.getsockname()[:2], bytes(transfer.SECRET_BYTES))]
    fetch = pulls.fetch
    monkeypatch.setattr(pulls, "fetch", lambda *given: asked.append(1) or fetch(*given))
    errors = []

    def pull(number):
        with pytest.raises(IoError, match=f"name {number} of node silent: .*did not come") as caught:
            target = TensorTarget(Spec((10,), "uint8").builder(node.store, own_name(), keep=False))
            node.pulls.pull(("silent", (number, 1)), TOKEN, f"name {number}", lambda: target)
        errors.append(type(caught.value))

    threads = [threading.Thread(target=pull, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert began.acquire(timeout=60)
    for thread in threads:
        thread.join(60)
    silent.close()
    assert errors == [IoError] * 40 and len(asked) < 20, "not one after the other"
    assert len(node.pulls._places) == len(node.pulls._alone) == 0


def test_processes_that_wait_for_one_copy_share_its_error(nodes):
    """Each by a token of its own. That of the copy can have ended, which is no error of others."""
    node, joined, go_on = nodes[0], threading.Event(), threading.Event()
    problems, errors = [NotFoundError("freed"), IoError("the node does not answer")], []

    def join(*_):
        joined.set()
        assert go_on.wait(60)
        raise problems.pop(0)

    def pull(number):
        with pytest.raises((IoError, NotFoundError)) as caught:
            node.pull(f"{number:02x}" * 28)
        errors.append(type(caught.value))

    node.join = join
    threads = [threading.Thread(target=pull, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    assert joined.wait(60)
    until(lambda: node.pulls._alone._keys[KEY].users == len(threads), "all threads wait for the first one")
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert errors == [NotFoundError, *[IoError] * 4] and problems == [] and node.holdings.wanted() == {}


def test_a_copy_of_another_node_has_the_rest_of_the_time_for_its_first_byte(nodes, monkeypatch):
    node, found = nodes[0], []
    node.join = lambda *_: time.sleep(0.1) or [nodes[1].server.address]
    node.copies = lambda key, timeout: iter([nodes[1].server.address] * 2)

    def fetch(sources, memory, advance, populate, silence):
        found.append(silence)
        raise IoError("no byte")

    monkeypatch.setattr(pulls, "fetch", fetch)
    for limit in (5.0, 0.0):
        monkeypatch.setattr(pulls, "_ERROR_SECONDS", limit)
        with pytest.raises(IoError, match="no byte"):
            node.pull()
    assert found[0] is None and 0 < found[2] <= found[1] < 4.91 and found[3:5] == [None, pulls._OTHERS_SECONDS_MIN]


def test_memory_of_a_copy_is_made_as_its_bytes_come(daemon):
    with daemon.connect() as store:
        target = TensorTarget(Spec((SIZE,), "uint8").builder(store, own_name(), keep=False))

        def made():
            return os.stat(f"/proc/self/fd/{target.fileno()}").st_blocks * 512

        assert made() == 0
        target.populate(SIZE - 1, SIZE)
        assert 0 < made() < SIZE
        memory = target.memory()
        memory[-1] = 7
        target.populate(0, SIZE // 2)
        memory[: SIZE // 2] = DATA[: SIZE // 2]
        assert made() < SIZE
        del memory
        with target.publish() as tensor:
            assert bytes(tensor) == DATA[: SIZE // 2] + bytes(SIZE - SIZE // 2 - 1) + b"\7"


def test_a_group_arrives_with_its_members_in_one_copy(daemon, origin):
    np = pytest.importorskip("numpy")
    with daemon.connect() as store:
        options = {"kind": "weight", "producer": "p", "metadata": {"bits": 2}}
        group = store.put_group("group", {"codes": np.arange(1000, dtype="u1"), "scales": np.ones((10, 3), "f4")}, **options)
        node = Node("a", store, origin)
        origin.data = bytes(group.view(0, "uint8", (group.nbytes,)))
        spec = Spec.of(list(spec_of(group)))
        copy = node.pulls.pull(KEY, TOKEN, "g", lambda: TensorTarget(spec.builder(store, own_name(), keep=False)))
        assert spec_of(copy) == spec_of(group) and spec.metadata == {"bits": 2}
        assert {name: one.tobytes() for name, one in copy.members().items()} == {
            name: one.tobytes() for name, one in group.members().items()
        }
        node.holdings.end_copies(bytes.fromhex(TOKEN))
        node.server.close()


def test_copies_of_a_node_that_has_ended_are_read_until_their_memory_is_needed(nodes, origin):
    first, second, *_ = nodes
    # Of other tests.
    before = set(first.store.names())
    first.pull(keep=True)
    origin.server.close()

    def ended(*_):
        raise IoError("the node does not answer")

    def orphan(node):
        for key, copy in node.holdings.orphan("origin"):
            node.orphans.add(key, copy)

    for node in nodes:
        node.join = ended
    with pytest.raises(IoError, match="does not answer"):
        second.pull(keep=True)
    second.others = nodes
    orphan(first)
    assert first.holdings.wanted() == {} and len(set(first.store.names()) - before) == 1
    assert bytes(second.pull(keep=True)) == DATA and first.server.sent_bytes == SIZE, "a copy without a lease serves"
    assert bytes(first.pull()) == DATA and first.pulls.count == 1, "and is here again"
    assert bytes(first.pull("bb" * 28)) == DATA and len(first.holdings.wanted()["origin"]) == 2
    for node in (first, second):
        orphan(node)
    first.store.optimize_memory_usage()
    assert not set(first.store.names()) - before and first.orphans.lease(KEY) is None, "their memory was needed"
    with pytest.raises(IoError, match="does not answer"):
        second.pull()


def test_the_next_copy_is_read_when_one_has_ended_since_its_node_answered(nodes, origin):
    ended, freed, third, node = nodes

    def does_not_answer(*_):
        raise IoError("the node does not answer")

    for one in (ended, freed, third):
        one.pull()
    origin.server.close()
    node.join, node.others = does_not_answer, [ended, freed, third]
    asked, former = node.copies, [ended.server.address, third.server.address]

    def copies(key, timeout):
        addresses = list(asked(key, timeout))
        ended.server.close()
        freed.holdings.end_copies(bytes.fromhex(TOKEN))
        return iter(addresses)

    node.copies = copies
    assert bytes(node.pull()) == DATA and third.server.sent_bytes == SIZE
    node.holdings.end_copies(bytes.fromhex(TOKEN))
    third.holdings.end_copies(bytes.fromhex(TOKEN))
    node.copies = lambda *_: iter(former)
    with pytest.raises(IoError, match="does not answer"):
        node.pull()
    assert node.holdings.wanted() == {}


def test_a_node_without_memory_reads_one_copy_only(nodes):
    first, second, node, _ = nodes
    for one in (first, second):
        one.pull()
    node.others, made = [first, second], []

    class Full:
        """A builder whose memory cannot be made."""

        def __init__(self, builder):
            self._builder = builder

        def __getattr__(self, name):
            return getattr(self._builder, name)

        def _populate(self, start, end):
            raise IoError("cannot reserve")

    def target():
        made.append(TensorTarget(Full(Spec((SIZE,), "uint8").builder(node.store, own_name(), keep=False))))
        return made[-1]

    with pytest.raises(OverBudgetError, match="cannot reserve"):
        node.pulls.pull(KEY, TOKEN, "weights", target)
    assert len(made) == 1
    assert node.holdings.wanted() == {}


def test_the_copies_of_nodes_that_have_ended_are_limited(nodes):
    [node, *_] = nodes
    for number in range(3):
        node.orphans.add(("origin", (number, 1)), node.store.empty(f"{number}", (10,), "uint8").publish())
    assert "0" not in node.store.names() and {"1", "2"} <= set(node.store.names())
    assert node.orphans.lease(("origin", (0, 1))) is None and node.orphans.lease(("origin", (2, 1))).name == "2"
    for name in "12":
        node.store.remove(name)


def test_errors_name_the_tensor_and_its_node_and_leave_nothing(nodes, origin):
    with pytest.raises(NotFoundError, match="weights of node origin.*freed"):
        nodes[0].pull("cc" * 28)
    with pytest.raises(NotFoundError, match="weights of node origin.*another length"):
        nodes[0].pull(count=10)
    origin.server.close()
    with pytest.raises(IoError, match="weights of node origin: .* did not come"):
        nodes[0].pull()
    assert origin.trees.nodes() == set() and origin.left == ["a"] * 3
    assert nodes[0].pulls._arrivals == {} and len(nodes[0].pulls._alone) == 0 and nodes[0].holdings.wanted() == {}


def test_a_node_without_room_is_no_source(nodes, origin):
    first, second, *_ = nodes

    class Full:
        def _empty_copy(self, *_, **__):
            raise OverBudgetError("full")

    first.store = Full()
    with pytest.raises(OverBudgetError):
        first.pull()
    second.pull()
    assert origin.trees.nodes() == {"b"} and first.server.sent_bytes == 0


def test_a_tensor_that_is_released_when_it_is_asked_for_is_refused(nodes, origin, monkeypatch, daemon):
    with daemon.connect() as store:
        released = store.empty("released", (SIZE,), "uint8").publish()
        released.release()
        monkeypatch.setattr(origin.server, "_find", lambda name: whole(released))
        with pytest.raises(NotFoundError, match="freed"):
            nodes[0].pull()


def test_names_of_tokens_are_no_names_of_copies(nodes):
    assert nodes[0].pulls.find(bytes.fromhex(TOKEN)) is None
    with pytest.raises(NotFoundError):
        nodes[0].pulls.find(b"copy/origin/7/1")
