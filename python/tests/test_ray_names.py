"""Copies under the names of other nodes' tensors, without a cluster."""

import random
import sys
import threading

import pytest

pytest.importorskip("ray")
np = pytest.importorskip("numpy")

from conftest import serving  # noqa: E402
from ray_common import until  # noqa: E402

from cotensor import NotFoundError, OverBudgetError  # noqa: E402
from cotensor.ray import named, transfer  # noqa: E402
from cotensor.ray.handle import Spec  # noqa: E402
from cotensor.ray.holdings import Holdings  # noqa: E402
from cotensor.ray.pulls import Pulls, whole  # noqa: E402

TOKEN = random.Random(0).randbytes(28)


class Token:
    def hex(self):
        return TOKEN.hex()

    def binary(self):
        return TOKEN


@pytest.fixture
def other(monkeypatch):
    """Another node: its store, and a function that is called when a copy of its tensor begins."""

    class Other:
        began = staticmethod(lambda: None)

        def find(self, token):
            assert token == TOKEN
            self.began()
            return whole(self.store.get("x"))

    other = Other()
    server = transfer.Server("127.0.0.1", other.find)
    monkeypatch.setattr(transfer, "SILENCE_TIMEOUT", 60)
    answers = {
        "describe": lambda name: named.described("other", other.store.get(name)) if name in other.store.names() else None,
        "lend": lambda id_, name: Token(),
        "newest_of": lambda names: {name: ("other", other.store.get(name).id) for name in names},
    }
    monkeypatch.setattr(named, "others", lambda own: ["other"])
    monkeypatch.setattr(named, "with_agents", list)
    monkeypatch.setattr(
        named,
        "answers",
        lambda own, method, *arguments, nodes: [("other", answers[method](*arguments))] if other.does_answer and nodes else [],
    )
    monkeypatch.setattr(named, "answer_of", lambda node, method, *arguments: answers[method](*arguments))
    other.join, other.leave = lambda *_: [server.address], lambda *_: other.left.append(1)
    other.left, other.does_answer = [], True
    with serving() as daemon, daemon.connect() as other.store:
        yield other
    server.close()


@pytest.fixture
def here(daemon, other):
    with daemon.connect() as store:
        here = named.Named("own", store, Pulls(Holdings(), other), list)
        here.store, here.pulls = store, here._pulls
        yield here


@pytest.fixture
def user(daemon):
    """The store of another process of this node."""
    with daemon.connect() as store:
        yield store


def publish(store, number, is_group):
    value = np.full(100_000, number)
    return store.put_group("x", {"a": value, "b": value}) if is_group else store.put("x", value)


def first(store):
    with store.get("x") as tensor:
        return next(iter((tensor.members() or {"": tensor}).values())).numpy()[0]


@pytest.mark.parametrize("is_group", [False, True])
def test_what_this_node_publishes_during_a_copy_is_not_replaced(here, other, user, is_group):
    publish(other.store, 1, is_group)
    other.began = lambda: publish(here.store, 2, is_group)
    here.bring("x")
    assert (first(here.store), here.pulls.count, here.names(), other.left) == (2, 0, [], [1]), "no node is sent here"
    here.store.remove("x")
    other.began = lambda: None
    here.bring("x")
    assert (first(here.store), here.pulls.count, here.names()) == (1, 1, ["x"])
    with user.get("x"):
        publish(other.store, 3, is_group)
        other.began = lambda: publish(here.store, 4, is_group)
        here.update()
        assert (first(here.store), here.names()) == (4, [])
    here.store.remove("x")


@pytest.fixture
def around_publication(monkeypatch):
    """Sets two functions that are called before and after each publication of a copy."""

    class Builder:
        def __init__(self, builder):
            self._builder = builder

        def __getattr__(self, name):
            return getattr(self._builder, name)

        def _publish_if(self, former):
            calls[0]()
            tensor = self._builder._publish_if(former)
            calls[1]()
            return tensor

    def around(before=lambda: None, after=lambda: None):
        calls[:] = before, after

    builder, calls = Spec.builder, []
    around()
    monkeypatch.setattr(Spec, "builder", lambda *arguments, **options: Builder(builder(*arguments, **options)))
    return around


@pytest.mark.parametrize("is_group", [False, True])
def test_what_this_node_publishes_just_before_a_copy_is_not_replaced(here, other, user, is_group, around_publication):
    publish(other.store, 1, is_group)
    here.bring("x")
    with user.get("x"):
        publish(other.store, 3, is_group)
        # When all bytes are here and have been looked at.
        around_publication(lambda: publish(here.store, 2, is_group))
        here.update()
        assert (first(here.store), here.pulls.count, here.names()) == (2, 1, []), "in place of a former copy"
    here.store.remove("x")
    here.bring("x")
    assert (first(here.store), here.pulls.count, here.names()) == (2, 1, []), "under a free name"
    here.store.remove("x")


def test_newer_versions_come_for_users_only(here, other, user):
    publish(other.store, 1, False)
    here.bring("x")
    with user.get("x"):
        publish(other.store, 2, False)
        here.update()
        assert (first(user), here.pulls.count, here.names()) == (2, 2, ["x"])
    with here.store.get("x") as tensor:
        until("the other process has released it", lambda: not named.is_used(here.store, tensor))
    publish(other.store, 3, False)
    here.update()
    assert (here.store.names(), here.pulls.count, here.names()) == ([], 2, [])


def test_a_copy_of_an_older_version_is_not_read_when_the_publisher_fails_or_has_ended(here, other, monkeypatch):
    publish(other.store, 2, False)
    new = named.described("other", other.store.get("x"), ("publisher", (3, 2)))
    old, publisher = new._replace(node="old", origin=("publisher", (3, 1))), new._replace(node="publisher", id=(3, 2))
    lent = []

    def answer_of(node, method, *arguments):
        lent.append(node)
        return Token() if node == "other" else None

    monkeypatch.setattr(named, "answer_of", answer_of)
    for found in ([old, publisher, new], [old, new]):
        monkeypatch.setattr(named, "answers", lambda *_, nodes, found=found: [(each.node, each) for each in found])
        here.bring("x")
        assert first(here.store) == 2
        assert here.newest(["x"]) == {"x": ("publisher", (3, 2))}, "newer versions are asked for at the publisher"
        here.store.remove("x")
    assert lent == ["publisher", "other", "other"]


def test_an_agent_that_is_started_again_knows_its_copies(here, other):
    publish(other.store, 1, False)
    here.bring("x")
    here.store.put("own", np.ones(3))
    again = named.Named("own", here.store, here.pulls, list)
    assert again.names() == ["x"] and again.describe("x").is_copy and not again.describe("own").is_copy
    publish(other.store, 2, False)
    again.update()
    assert (here.store.names(), again.names()) == (["own"], []), "the unused copy of an older version was freed"
    here.store.put("x", np.ones(3))
    assert named.Named("own", here.store, here.pulls, list).names() == []
    for name in here.store.names():
        here.store.remove(name)


def test_an_agent_that_is_killed_while_it_publishes_a_copy_knows_it_in_its_next_life(here, other, user, around_publication):
    found = []

    def look():
        again = named.Named("own", here.store, here.pulls, list)
        found.append((again.names(), again.newest(["x"])))
        # The process was not killed, and its list is the one that it has made.
        here._listed = None
        here._write_list()

    around_publication(look, look)
    publish(other.store, 1, False)
    first_id = other.store.get("x").id
    here.bring("x")
    assert found == [([], {}), (["x"], {"x": ("other", first_id)})]
    with user.get("x"):
        publish(other.store, 2, False)
        here.update()
    assert found[2:] == [(["x"], {"x": ("other", first_id)}), (["x"], {"x": ("other", other.store.get("x").id)})]
    # In place of the copy, which was not published yet.
    here.store.remove("x")
    around_publication(lambda: (here.store.put("x", np.ones(3)), look()))
    here.bring("x")
    assert found[4:] == [([], {"x": ("own", here.store.get("x").id)})]
    here.store.remove("x")


def test_a_copy_is_described_as_one_as_soon_as_it_is_visible(here, other, around_publication):
    found = []

    def described():
        found.append(here.describe("x"))

    def ends_or_waits():
        frame = sys._current_frames().get(thread.ident)
        return not thread.is_alive() or (frame is not None and frame.f_code.co_name == "wait")

    thread = threading.Thread(target=described)
    around_publication(after=lambda: (thread.start(), until("the thread ends or waits", ends_or_waits)))
    publish(other.store, 1, False)
    here.bring("x")
    thread.join(60)
    assert found[0].is_copy and here.names() == ["x"]
    here.store.remove("x")


def test_a_copy_is_not_published_without_room_for_the_list(here, other, monkeypatch):
    publish(other.store, 1, False)

    class Full:
        def __getattr__(self, name):
            return getattr(store, name)

        def empty(self, name, *arguments, **options):
            if name == named._LIST:
                raise OverBudgetError("full")
            return store.empty(name, *arguments, **options)

    store = here.store
    monkeypatch.setattr(here, "_store", Full())
    with pytest.raises(OverBudgetError):
        here.bring("x")
    assert "x" not in store.names() and other.left == [1] and here.describe("x") is None


def test_the_list_of_copies_stays_when_memory_is_needed(other):
    with serving("--max-memory=64MiB") as daemon, daemon.connect() as store, daemon.connect() as user:
        here = named.Named("own", store, Pulls(Holdings(), other), list)
        publish(other.store, 1, False)
        here.bring("x")
        with user.get("x"):
            for number in range(40):
                store.put(f"{number}", np.ones(4 << 20, "u1")).release()
            assert "0" not in store.names()
            assert named.Named("own", store, Pulls(Holdings(), other), list).names() == ["x"]


def test_an_agent_that_is_starting_is_waited_for(here, other):
    publish(other.store, 1, False)
    other.does_answer = False
    with pytest.raises(NotFoundError, match="no node has a tensor 'x'; without an answer: node other$"):
        here.bring("x")

    def started(nodes):
        other.does_answer = True
        return nodes

    here._start = started
    here.bring("x")
    assert first(here.store) == 1
    with pytest.raises(NotFoundError, match="no node has a tensor 'y'$"):
        here.bring("y")


def test_unused_copies_give_way_to_what_this_node_publishes(here, other, monkeypatch):
    publish(other.store, 1, False)
    here.bring("x")
    publish(other.store, 2, False)

    def unused(store, tensor):
        publish(here.store, 5, False)
        return False

    monkeypatch.setattr(named, "is_used", unused)
    here.update()
    assert first(here.store) == 5, "the newer tensor is not removed"


def test_names_that_no_node_has_leave_nothing(here):
    for number in range(100):
        with pytest.raises(NotFoundError):
            here.bring(f"missing{number}")
    assert len(here._alone) == 0
