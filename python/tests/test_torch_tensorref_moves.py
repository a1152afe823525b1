"""The driver counts the copies that are on the device, also after failures, exceptions, and copies made by nested moves."""

from __future__ import annotations

import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import X, check, mlp  # noqa: E402

from cotensor.tensorref import Middleware, offload  # noqa: E402
from cotensor.tensorref.broker import Share  # noqa: E402

STRATEGIES = pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "pinned"])


def agrees(session):
    """Whether the driver has exactly the weights with copies on the device."""
    for mover in session.movers:
        weights = mover.weights.all
        assert [weight.copy is not None for weight in weights] == [mover.driver.is_on_device(each.number) for each in weights]
        assert mover.driver.used == sum([weight.size_bytes for weight in weights if weight.copy is not None])
        assert set(mover.by_copy) == {weight.key for weight in weights if weight.copy is not None}


class Raising(Middleware):
    """Raises at a move."""

    #: The moves before it.
    left = 0

    def before_move(self, move):
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("no move now")
        return True


class Watching(Middleware):
    """No weight is copied twice, and none leaves that is not there."""

    def __init__(self):
        self.on_device = set()

    def after_move(self, move):
        assert (move.tensor in self.on_device) != move.to_device
        (self.on_device.add if move.to_device else self.on_device.remove)(move.tensor)


@STRATEGIES
def test_an_exception_between_moves_leaves_no_weight_behind(strategy, memory):
    model, raising = mlp(10), Raising()
    with offload(model, "simulated", strategy=strategy, memory=8000 + memory.allocated_bytes) as session, torch.no_grad():
        for _ in range(3):
            model(X)
        session.use(raising)
        on_host = session.stats()["on_host"]
        failures = 0
        for number in range(60):
            raising.left = number % 25
            try:
                model(X)
            except RuntimeError as failure:
                assert str(failure) == "no move now"
                failures += 1
            agrees(session)
        assert failures >= 30
        raising.left = -1
        y = model(X)
        assert session.stats()["on_host"] == on_host
    check(model, y)


@STRATEGIES
def test_a_copy_without_memory_is_followed_by_moves_that_count(strategy, memory):
    for number in range(60):
        model, watch = mlp(12), Watching()
        with offload(model, "simulated", strategy=strategy, memory=9000 + memory.allocated_bytes) as session, torch.no_grad():
            for _ in range(3):
                model(X)
            session.invalidate()
            session.use(watch)
            held = torch.ones(300, device="simulated")          # activations, for which memory is kept after a failure
            memory.fail(1 + number % 3, after=number)
            try:
                model(X)
            except torch.OutOfMemoryError:
                # Also those after the weights had left.
                assert number % 3 > 0
            memory.fail(0)
            agrees(session)
            y = model(X)
            agrees(session)
            del held
        check(model, y)


@STRATEGIES
def test_an_operation_that_raises_holds_no_memory(strategy, memory):
    model = mlp(2)
    with offload(model, "simulated", strategy=strategy) as session, torch.no_grad():
        model(X)
        with pytest.raises(RuntimeError):
            model[0](torch.ones(3, 5))
        (mover,) = session.movers
        assert mover.limit(0) or mover.driver.used == 0
        agrees(session)
        assert mover.driver.used == 0


def test_a_share_is_followed_after_an_exception():
    class Service:
        """Shrinks the share twice."""

        def __init__(self):
            self.sizes = [2, 1]
            self.acknowledged = []

        def wait(self, changes, seconds):
            if self.sizes:
                return self.sizes.pop(0), changes + 1
            share._closed = True
            return 0, changes

        def acknowledge(self, size):
            self.acknowledged.append(size)

    class Moves:
        lock = threading.Lock()
        device = "simulated"

        def limit(self, size):
            if size == 2:
                raise RuntimeError("a strategy of the program failed")
            return True

    share = Share.__new__(Share)
    share._share, share._mover, share._closed = Service(), Moves(), False
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        share._follow(0)
    assert share._share.acknowledged == [1]
    assert "a strategy of the program failed" in str(given[0].message)
