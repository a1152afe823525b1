"""Parts of a session, each without the others."""

import pickle
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", "2.10")

from cotensor.tensorref.dispatcher import Dispatcher  # noqa: E402
from cotensor.tensorref.operations import Kind  # noqa: E402
from cotensor.tensorref.pauses import Pauses  # noqa: E402


def test_kind_without_handler_is_refused():
    handlers = {kind: None for kind in Kind if kind is not Kind.ESCAPE}
    with pytest.raises(AssertionError, match="ESCAPE"):
        Dispatcher(handlers, None, Pauses())


def test_pause_ends_with_its_frame():
    pauses, thread = Pauses(), threading.get_ident()

    def step():
        pauses.begin(thread, sys._getframe())
        assert pauses.is_paused()
        raise ValueError

    with pytest.raises(ValueError):
        step()
    assert not pauses.is_paused()
    pauses.begin(thread, None)
    assert pauses.is_paused(), "for good"
    pauses.end(thread)
    assert not pauses.is_paused()


def test_hook_that_an_earlier_version_has_pickled_does_nothing():
    pickled = b"ccotensor.tensorref.session\n_Hook\n(NS'_before_forward'\ntR."
    hook = pickle.loads(pickled)
    assert hook(torch.nn.Identity(), ()) is None
    assert pickle.loads(pickle.dumps(hook))(torch.nn.Identity(), (), None) is None


def test_a_pause_that_has_ended_keeps_nothing():
    """The thread of a step that failed has ended, or goes on without functions of the session."""
    pauses, held = Pauses(), []

    def step():
        kept = torch.nn.Parameter(torch.ones(2))
        held.append(weakref.ref(kept))
        pauses.begin(threading.get_ident(), sys._getframe())

    def in_thread(function):
        thread = threading.Thread(target=function)
        thread.start()
        return thread

    in_thread(step).join()
    assert held[0]() is not None
    failed, goes_on = threading.Event(), threading.Event()
    other = in_thread(lambda: (step(), failed.set(), goes_on.wait(60)))
    assert failed.wait(60)
    # The frame may have been the caller until here.
    assert held[0]() is None and held[1]() is not None

    def another():
        pauses.begin(threading.get_ident(), sys._getframe())
        assert list(pauses.frames) == [threading.get_ident()] and held[1]() is None
        in_thread(step).join()
        # One that has not ended stays.
        assert pauses.is_paused()

    another()
    goes_on.set()
    other.join()
