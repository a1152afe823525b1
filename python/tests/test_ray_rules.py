"""The rules of functions and models of cotensor.ray, without a cluster."""

import json
import os
import threading
import time
from collections import OrderedDict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")
np = pytest.importorskip("numpy")

import cotensor.ray  # noqa: E402
from cotensor import (  # noqa: E402
    ConflictError,
    IoError,
    NoDaemonError,
    NotFoundError,
    OverBudgetError,
    Store,
    UnsupportedError,
    _elsewhere,
)
from cotensor.client import SharedTensorClient  # noqa: E402
from cotensor.functions.retries import not_called  # noqa: E402
from cotensor.provider import SharedTensorProvider  # noqa: E402
from cotensor.ray import client, functions, named, peers, serialization, values  # noqa: E402
from cotensor.ray import process as own  # noqa: E402
from cotensor.ray.agent import KEEP  # noqa: E402
from cotensor.ray.calls import Callee, Outcome  # noqa: E402
from cotensor.ray.daemon import may_be_of, socket_of  # noqa: E402
from cotensor.ray.functions import Calls, Pulse  # noqa: E402
from cotensor.ray.handle import Handle, Spec, spec_of  # noqa: E402
from cotensor.ray.models import Copies, Described, sources  # noqa: E402
from cotensor.ray.named import Named, described  # noqa: E402
from cotensor.ray.peers import ANSWER_TIMEOUT  # noqa: E402
from cotensor.ray.process import Process  # noqa: E402
from cotensor.ray.setup import _bring  # noqa: E402


def test_functions_of_agents_stay_on_their_nodes():
    assert functions.is_found_elsewhere("cotensor.rays") and not functions.is_found_elsewhere("cotensor.ray.keep")


def test_node_that_does_not_answer_is_silent():
    pulse = Pulse(0.0)
    assert not pulse.is_due(0.9) and pulse.is_due(1.0) and not pulse.is_silent(100.0)
    pulse.asked(1.0)
    # A failed sign is asked for again, and does not count as an answer.
    pulse.asked(3.0)
    assert not pulse.is_silent(4.4) and pulse.is_silent(4.5)
    pulse.answered(4.4)
    assert not pulse.is_silent(100.0) and not pulse.is_due(5.3) and pulse.is_due(5.4)


def test_calls_end_with_their_callers():
    calls, cancelled = Calls(), []
    for call in ("a", "b", "c"):
        calls.begin(call, f"function {call}", lambda call=call: cancelled.append(call), 0.0)
    assert calls.running() == ["function a", "function b", "function c"]
    calls.hear("a", 5.0)
    calls.end("b")
    calls.cancel_silent(9.9)
    assert cancelled == []
    calls.cancel_silent(10.0)
    assert cancelled == ["c"]
    calls.cancel("a", 11.0)
    assert cancelled == ["c", "a"]


def test_cancelled_call_that_begins_later_is_cancelled_then():
    calls, cancelled = Calls(), []
    calls.cancel("late", 0.0)
    calls.cancel_silent(functions.CANCELLATION_KEPT - 1)
    calls.begin("late", "f", lambda: cancelled.append("late"), 300.0)
    assert cancelled == ["late"]
    calls.end("late")
    calls.cancel("never", 0.0)
    calls.cancel_silent(functions.CANCELLATION_KEPT)
    calls.begin("never", "f", lambda: cancelled.append("never"), 700.0)
    assert cancelled == ["late"]


def test_values_travel_as_handles_arrays_and_numbers():
    handle = Handle("node", "name", (1, 1), Spec((3,), "float32"), None, "tensor", None)
    large = np.ones(values.INLINE_BYTES_MAX + 1, "u1")
    value = {"a": [1, (None, "text", b"bytes", 2.5, True)], "o": OrderedDict(x=np.float32(2)), "l": large, "s": np.arange(3)}
    sent = values.sent(value, lambda array: handle if array is large else None)
    assert sent["l"] is handle and sent["s"].tolist() == [0, 1, 2] and type(sent["o"]) is OrderedDict
    found = values.received(sent, lambda one: ["opened", one], lambda array: array + 1)
    assert found["l"] == ["opened", handle] and found["s"].tolist() == [1, 2, 3] and found["a"] == value["a"]
    assert type(found["o"]["x"]) is np.float32
    with Store().put("small", np.ones(2, "f4")) as tensor:
        assert type(values.sent(tensor, lambda _: handle)) is np.ndarray
    with Store().put_group("group", {"a": np.ones(2)}) as group:
        assert values.sent(group, lambda _: handle) is handle, "an array has no members"
    for wrong in ({1}, object(), np.datetime64("2026-11-27"), lambda: None):
        with pytest.raises(UnsupportedError, match="cross between nodes"):
            values.sent([wrong], lambda _: handle)


def of(node, fingerprint="1", id_=(1, 1), origin=None):
    spec = Spec((1,), "uint8", "weight")
    return Described(node, "m", id_, spec, fingerprint, origin or (node, id_))


def test_a_name_has_one_fingerprint_on_all_nodes():
    first, second, copy = of("a"), of("b"), of("c", origin=("a", (1, 1)))
    assert copy.is_copy and not first.is_copy
    assert sources("m", [first]) == [first]
    assert sources("m", [copy, first, second]) == [first, second, copy]
    with pytest.raises(ConflictError, match="m: node a and node e have published different tensors"):
        sources("m", [first, of("e", "2"), copy])
    with pytest.raises(ConflictError, match="m: node c and node f have different tensors"):
        sources("m", [copy, of("f", "2", origin=("e", (1, 1)))])


def test_copies_of_older_versions_are_no_sources():
    """Fingerprints do not contain values: two versions can have one."""
    publisher, new, old = of("a", id_=(3, 2)), of("c", origin=("a", (3, 2))), of("d", origin=("a", (3, 1)))
    for found in ([old, publisher, new], [new, old, publisher]):
        assert sources("m", found) == [publisher, new]
    assert sources("m", [old, publisher]) == [publisher]
    for found in ([old, new], [new, old]):
        assert sources("m", found) == [new], "the publisher has ended"
    other = of("f", origin=("e", (9, 1)))
    assert sources("m", [old, other, new]) == [other, new], "an equal tensor of another publisher"


def test_versions_of_different_lives_of_a_publisher_are_not_compared():
    """A daemon's first id is a random number."""
    before, after = of("c", origin=("a", (900, 3))), of("d", origin=("a", (5, 1)))
    for found in ([before, after], [after, before]):
        with pytest.raises(ConflictError, match=f"m: node {found[0].node} and node {found[1].node} have different tensors"):
            sources("m", found)
    publisher = of("a", id_=(5, 1))
    assert sources("m", [before, publisher, after]) == [publisher, after]
    older, newer = of("e", origin=("a", (5, 2))), of("f", origin=("a", (5, 10)))
    assert sources("m", [older, newer]) == [newer]


def test_an_answer_with_another_name_is_no_source(monkeypatch):
    agent = object.__new__(Named)
    agent._node = "own"
    found = [("a", of("a")), ("b", of("b")._replace(name="other"))]
    monkeypatch.setattr(named, "others", lambda node: ["a", "b"])
    monkeypatch.setattr(named, "with_agents", list)
    monkeypatch.setattr(named, "answers", lambda *_, **__: iter(found))
    assert agent._sources("m") == [found[0][1]]
    del found[0]
    with pytest.raises(NotFoundError, match="no node has a tensor 'm'"):
        agent._sources("m")


def test_fingerprints_are_those_of_the_tensors_and_not_of_their_nodes():
    stores = [Store(), Store()]
    stores[1].put("other", np.ones(3))
    options = {"metadata": {"a": 1, "b": {"c": 2, "d": 3}}, "producer": "p"}
    other = {"metadata": {"b": {"d": 3, "c": 2}, "a": 1}, "producer": "q"}
    tensors = [store.put("x", np.ones(4), **one) for store, one in zip(stores, (options, other))]
    same = [described(f"{number}", tensor) for number, tensor in enumerate(tensors)]
    spec = same[0].spec
    assert same[0].fingerprint == same[1].fingerprint and (spec.metadata, spec.producer) == (options["metadata"], "p")
    put = stores[0].put
    different = [put("x", np.ones(4)), put("x", np.ones(5), **options), put("y", np.ones(4), **options), stores[1].get("x")]
    assert len({described("0", tensor).fingerprint for tensor in different}) == 4


def test_copies_are_known_while_they_are_the_newest_versions():
    copies = Copies()
    copies.add("m", (5, 1), "node", (3, 2))
    copies.add("n", (6, 1), "node", (4, 1))
    assert copies.origin("m", (5, 1)) == ("node", (3, 2)) and copies.origin("k", (5, 1)) is None
    assert copies.by_node() == {"node": {"m": (3, 2), "n": (4, 1)}}
    assert copies.origin("m", (5, 2)) is None, "this node has published it"
    assert copies.origin("n", None) is None, "it was freed"
    assert copies.names() == [] and copies.by_node() == {}


def test_an_expected_copy_is_one_if_the_name_has_another_version_of_its_fingerprint():
    for id_, fingerprint, is_copy in (((5, 2), "f", True), ((5, 2), "g", False), ((5, 1), "f", False), (None, "", False)):
        copies = Copies()
        copies.add("m", (5, 1), "node", (3, 1))
        copies.expect("m", (5, 1), ("node", (3, 2)), "f")
        copies = Copies.of(json.loads(json.dumps(copies.entries())))
        assert copies.expected() == ["m"]
        copies.settle("m", id_, fingerprint)
        assert copies.expected() == [] and copies.origin("m", (5, 2)) == (("node", (3, 2)) if is_copy else None)
    copies = Copies()
    copies.expect("m", None, ("node", (3, 2)), "f")
    copies.withdraw("m")
    copies.settle("m", (5, 1), "f")
    assert copies.origin("m", (5, 1)) is None


def test_only_workers_collect_in_a_thread(monkeypatch):
    """A thread that drops a reference while ``ray.shutdown`` runs ends the driver."""
    started, timer = [], SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(serialization.threading, "Timer", lambda *given: started.append(given) or timer)
    for mode in (ray.SCRIPT_MODE, ray.WORKER_MODE):
        monkeypatch.setattr(ray._private.worker.global_worker, "mode", mode)
        serialization._collect_soon()
    assert len(started) == 1
    serialization._collecting.release()


def test_names_are_looked_for_here_only_without_a_cluster(monkeypatch):
    monkeypatch.setattr(_elsewhere, "bring", _bring)
    with pytest.raises(KeyError):
        _elsewhere.get(Store(), "name")
    assert not ray.is_initialized(), "no cluster was started for it"


def test_no_cluster_is_started_for_a_process_that_has_left_one():
    for needs_one in (Process.current, lambda: cotensor.ray.get("name"), cotensor.ray.store, lambda: cotensor.ray.Client()):
        with pytest.raises(UnsupportedError, match="in no cluster of Ray"):
            needs_one()
    assert not ray.is_initialized()


def test_no_agent_is_started_for_stores_of_other_daemons(daemon, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setitem(_bring.__globals__, "node_id", lambda: "ab" * 28)
    monkeypatch.setattr(Process, "current", lambda: pytest.fail("an agent starts"))
    with daemon.connect() as store:
        assert not _bring(store, "name") and not _bring(Store(), "name")
    assert may_be_of(socket_of("ab" * 28), "ab" * 28)


def test_names_are_looked_for_elsewhere_only_if_the_store_lacks_them(monkeypatch):
    store, asked = Store(), []

    def bring(store, name):
        asked.append(name)
        if name == "there":
            store.put(name, np.ones(3))
        return name == "there"

    store.put("here", np.ones(2))
    with pytest.raises(KeyError):
        _elsewhere.get(store, "there")
    monkeypatch.setattr(_elsewhere, "bring", bring)
    assert [_elsewhere.get(store, name).shape for name in ("here", "there", "there")] == [(2,), (3,), (3,)]
    with pytest.raises(KeyError, match="nowhere"):
        _elsewhere.get(store, "nowhere")
    assert asked == ["there", "nowhere"]


def test_a_call_is_not_repeated_when_its_result_is_lost(daemon, monkeypatch):
    """No other process has the tensor of a result: the node's daemon or its agent has ended meanwhile."""
    runs, lost = [], [NoDaemonError("no daemon"), NotFoundError("no function", field="name")]

    class Attempt:
        def __init__(self, node, name):
            pass

        def run(self, arguments, timeout):
            runs.append(1)
            return Outcome(Handle("other", "name", (1, 1), Spec((3,), "float32"), None, "tensor", None))

    def opened(handle):
        raise lost[len(runs) - 1]

    process = SimpleNamespace(node="own", store=daemon.connect(), open=opened)
    monkeypatch.setattr(Process, "current", lambda: process)
    monkeypatch.setattr(client, "_offering", lambda *_: iter(["other"]))
    monkeypatch.setattr(client, "_Attempt", Attempt)
    caller = client.Client(tensors="cotensor")
    for _ in lost:
        with pytest.raises(IoError, match="scale on node other has run, and its result is lost: no "):
            caller.call_function("scale")
    caller.close()
    process.store.close()
    assert runs == [1, 1]


def test_a_node_that_ends_before_a_call_is_passed_over_and_others_have_the_time_of_the_call(daemon, monkeypatch):
    def ended(node):
        raise ValueError("no such actor")

    times = []

    def answers(own, method, *arguments, timeout=None):
        times.extend([timeout] if method == "offers" else [])
        return iter([("ended", True)] if method == "offers" else [])

    process = SimpleNamespace(node="own", store=daemon.connect())
    monkeypatch.setattr(Process, "current", lambda: process)
    monkeypatch.setattr(client, "running_agent", ended)
    monkeypatch.setattr(client, "answers", answers)
    with client.Client(tensors="cotensor", retry_count=0) as caller:
        for timeout in (1, None):
            with pytest.raises(NotFoundError, match="scale"):
                caller.call_function("scale", timeout=timeout)
    process.store.close()
    assert 0 < times[0] <= 1 and times[1] == ANSWER_TIMEOUT


def test_an_agent_reports_that_a_function_has_run(daemon):
    """Another node calls no other one then."""
    lost = NoDaemonError("no daemon")

    class Without:
        """A store whose daemon ends while the function runs."""

        def _empty_copy(self, *_, **__):
            raise lost

    with daemon.connect() as store, SharedTensorProvider(store=store) as provider:
        provider.share(name="make")(lambda: np.ones(1_000_000))
        provider.start()
        callee = Callee("node", store, None, None)
        callee._store = Without()
        error = callee.call("id", "make", (), {}, None).error
        assert isinstance(error, IoError) and "make has run, and its result is lost: no daemon" in str(error)
        assert callee.running() == []
        missing = callee.call("id", "gone", (), {}, None).error
        assert isinstance(missing, NotFoundError) and not_called(missing)


@pytest.fixture
def counted(monkeypatch):
    """The objects that are written are ordinary ones of Ray."""
    monkeypatch.setattr(serialization, "_is_counted", lambda: True)


def test_arrays_do_not_travel_silently_when_the_agent_has_another_version(counted, monkeypatch):
    def other_version(*_):
        raise UnsupportedError("the agent of node own has Cotensor 0.0.1, and this process 0.1.0: use one version")

    array = np.ones(values.INLINE_BYTES_MAX + 1, "u1")
    process = SimpleNamespace(put=lambda value: Store().put("x", value), handle_of=other_version)
    for current in (other_version, lambda: process):
        monkeypatch.setattr(Process, "current", current)
        with pytest.raises(UnsupportedError, match="has Cotensor 0.0.1"):
            serialization._array(array)
    dates = np.full(100_000, "2026-11-29", "M8[D]")
    assert serialization._array(dates)[0] is not serialization._value, "a dtype that is not shared travels in its object"


def test_tensors_travel_by_value_when_the_node_is_full_or_has_no_daemon(counted, monkeypatch):
    problems = [OverBudgetError("full"), NoDaemonError("no daemon")]

    def handle_of(tensor):
        raise problems[0]

    process = SimpleNamespace(handle_of=handle_of, store=Store())
    process._made = lambda make: Process._made(process, make)
    process.put_values = lambda *given: Process.put_values(process, *given)
    monkeypatch.setattr(Process, "current", lambda: process)
    options = {"kind": "weight", "producer": "p", "metadata": {"bits": 2}}
    group = Store().put_group("group", {"codes": np.arange(300_000) % 200, "scales": np.ones((10, 3), "f4")}, **options)
    sent = [group, Store().put("x", np.arange(400_000.0).reshape(2, -1), **options)[:, 10:], group["scales"]]
    while problems:
        for tensor in sent:
            is_large = tensor.nbytes > values.INLINE_BYTES_MAX
            with pytest.warns(ResourceWarning, match="inside of its object") if is_large else nullcontext():
                make, fields = serialization._tensor(tensor)
            found = make(*fields)
            assert spec_of(found) == spec_of(tensor) and found.tobytes() == tensor.tobytes()
            assert {name: one.tobytes() for name, one in found.members().items()} == {
                name: one.tobytes() for name, one in tensor.members().items()
            }
        problems.pop(0)
    problems.append(OverBudgetError("full"))
    with pytest.raises(OverBudgetError):
        serialization._handle(lambda process: process.handle_of(None), has_values=False)


@pytest.fixture
def process(daemon, monkeypatch):
    """A process at a node. Its agent is in this process, and gives signs of life while ``signs`` has one."""
    monkeypatch.setattr(own, "aside", nullcontext)
    monkeypatch.setattr(own, "_SILENT_MAX", 0.5)
    monkeypatch.setattr(own, "_SIGN_INTERVAL", 0.05)
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []) if process.signs else ([], asked))
    process, process.node, process.signs = object.__new__(Process), "own", [1]
    process._agent = SimpleNamespace(hear=SimpleNamespace(remote=lambda call: "sign"))
    with daemon.connect() as store, SharedTensorProvider(store=store, execution_mode="server", workers=2) as provider:
        process._client = SharedTensorClient(store=store, timeout=None)
        process.provider = provider
        yield process
        process._client.close()


def test_a_copy_takes_its_time_while_the_agent_gives_signs_of_life(process):
    process.provider.share(name="cotensor.ray.slow")(lambda: time.sleep(2) or "done")
    process.provider.start()
    assert process._call("cotensor.ray.slow", []) == "done"


def test_calls_of_threads_get_their_own_results(process):
    process.provider.share(name="cotensor.ray.same")(lambda value: time.sleep(0.05) or value)
    process.provider.start()
    found = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: process._call("cotensor.ray.same", [n])})) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: number for number in range(8)}


@pytest.mark.parametrize("function", ["cotensor.ray.hangs", KEEP])
def test_an_agent_that_hangs_is_an_error_that_names_it(process, function):
    ends = threading.Event()
    process.provider.share(name=function)(lambda: ends.wait(60))
    process.provider.start()
    process.signs.clear()
    with pytest.raises(IoError, match="the agent of this node, the actor 'own' .* does not answer"):
        process._call(function, [])
    ends.set()


def test_a_node_is_looked_for_at_a_head_that_answers(monkeypatch):
    """Ray's own look-up waits for a minute. It does without the head for a node that it has found before."""

    class Head:
        def internal_kv_get(self, key, namespace, timeout):
            raise ray.exceptions.RpcError("Deadline Exceeded")

    asked, agent = [], SimpleNamespace(_actor_id=b"\1")
    monkeypatch.setattr(ray, "get_actor", lambda node, namespace: asked.append(node) or agent)
    monkeypatch.setattr(ray, "nodes", lambda: pytest.fail("it waits"))
    monkeypatch.setattr(ray._private.worker.global_worker, "gcs_client", Head(), raising=False)
    monkeypatch.setattr(peers, "_found", {"known": "01", "replaced": "02"})
    assert peers.running_agent("known") is agent
    for look in (lambda: peers.running_agent("other"), peers.living, lambda: peers.running_agent("replaced")):
        with pytest.raises(IoError, match="the head of the Ray cluster does not answer"):
            look()
    with pytest.raises(IoError, match="x of node other: the node does not answer: the head"):
        peers.ask("other", "token", "own", "x")
    assert peers.with_agents(["known", "other"]) == ["known", "other"], "it may have one"
    assert list(peers.answers("own", "counts", nodes=["other"])) == [] and asked == ["known", "replaced", "known"]


def test_two_threads_that_bring_one_folder_use_one_descriptor(monkeypatch, tmp_path):
    process, both = object.__new__(Process), threading.Barrier(2)
    use, used = own.use, []

    def opened(folder):
        descriptor = use(folder)
        used.append(descriptor)
        both.wait(60)
        return descriptor

    monkeypatch.setattr(Process, "_folders", {})
    monkeypatch.setattr(process, "_call", lambda *_: ["model", str(tmp_path)], raising=False)
    monkeypatch.setattr(own, "use", opened)
    threads = [threading.Thread(target=process.model, args=("m", "", None)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    left = [one for one in used if os.path.exists(f"/proc/self/fd/{one}")]
    assert left == list(Process._folders.values()) and len(used) == 2
    os.close(left[0])


def test_an_agent_with_another_version_is_an_error_that_names_both_nodes(monkeypatch):
    actors = {"same": b"\1", "other": b"\2", "starting": b"\3"}
    # The last one is that of a former actor of the node.
    noted = {b"same": f"{cotensor.__version__} 01".encode(), b"other": b"0.0.1 02", b"starting": b"0.0.1 ff"}
    head = SimpleNamespace(internal_kv_get=lambda key, namespace, timeout: noted.get(key))
    monkeypatch.setattr(ray._private.worker.global_worker, "gcs_client", head, raising=False)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "own"))
    monkeypatch.setattr(ray, "get_actor", lambda node, namespace: SimpleNamespace(_actor_id=actors[node]))
    monkeypatch.setattr(peers, "_found", {})
    expected = f"has Cotensor 0.0.1, and this process on node own has {cotensor.__version__}: install one version"
    for look in (lambda: peers.ask("other", "t", "own", "x"), lambda: peers.with_agents(["same", "other"])):
        with pytest.raises(UnsupportedError, match=f"node other {expected}"):
            look()
    for node in ("same", "starting"):
        assert peers.running_agent(node)._actor_id == actors[node]
    assert peers._found == {"same": "01"}, "the version of one that starts is not known"
    # Another actor has replaced the one that this process knows.
    actors["same"], noted[b"same"] = b"\4", b"0.0.1 04"
    with pytest.raises(UnsupportedError, match=f"node same {expected}"):
        peers.running_agent("same")


def test_an_agent_of_the_own_node_that_was_replaced_is_compared_again(process):
    def compared():
        raise UnsupportedError("the agent of node own has Cotensor 0.0.1")

    process.provider.share(name=KEEP.replace(cotensor.__version__, "0.0.1"))(lambda: None)
    process.provider.start()
    process._start_agent = compared
    with pytest.raises(UnsupportedError, match="has Cotensor 0.0.1"):
        process._call(KEEP, [])
