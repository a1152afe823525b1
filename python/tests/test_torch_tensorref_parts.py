"""Parts of a session, each without the others."""

import pickle
import sys
import threading

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
