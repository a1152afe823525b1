"""Threads of one session: backward passes with their errors, and weights that one of them replaces."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from tensorref_common import STRATEGIES, X, check, mlp  # noqa: E402

from cotensor.tensorref import computing, disable, enable, offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

ERROR = "modified by an inplace operation"


def waits(tensor, reached, goes_on):
    """The backward pass of a tensor tells that it has its gradient, and waits."""

    def hook(gradient):
        reached.set()
        assert goes_on.wait(60)

    tensor.register_hook(hook)


@STRATEGIES
@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("other", ["begins", "ends"])
def test_an_error_of_a_saved_tensor_is_raised_in_its_own_thread(other, sessions, strategy):
    """While another thread begins a backward pass after the error, or ends one that has begun before it."""
    model, second = mlp(2), mlp(2, seed=1)
    begun, failed, ended = threading.Event(), threading.Event(), threading.Event()

    def fails():
        y = model(x)
        waits(y, failed, ended)
        z = y.exp()
        z.mul_(2)
        z.sum().backward()

    def works():
        y = model(x)
        if other == "ends":
            waits(y, begun, failed)
        y.sum().backward()

    for one in (model, second)[:sessions]:
        enable(one, "simulated", strategy=strategy)
    try:
        x = X.to("simulated")
        with ThreadPoolExecutor(2) as pool:
            if other == "ends":
                working = pool.submit(works)
                assert begun.wait(60)
            failing = pool.submit(fails)
            assert failed.wait(60)
            if other == "begins":
                working = pool.submit(works)
            found = working.exception(60)
            ended.set()
            assert found is None
            with pytest.raises(RuntimeError, match=ERROR):
                failing.result(60)
    finally:
        ended.set()
        for one in (second, model)[-sessions:]:
            disable(one)


@STRATEGIES
def test_a_pass_of_a_thread_outside_of_the_session_raises_its_error(strategy):
    model = mlp(2)

    def program():
        y = model(X.to("simulated"))
        with torch.no_grad():
            model[1].weight.mul_(2)
        with pytest.raises(RuntimeError, match=ERROR):
            y.sum().backward()
        model(X.to("simulated")).sum().backward()

    with ThreadPoolExecutor(1) as before:
        before.submit(int).result()
        with offload(model, "simulated", strategy=strategy):
            before.submit(program).result()


@STRATEGIES
def test_a_pass_inside_of_another_one_raises_its_own_error(strategy):
    class Inner(torch.autograd.Function):
        """A backward pass that runs another one."""

        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad(), pytest.raises(RuntimeError, match=ERROR):
                z = model(X.to(gradient.device)).exp()
                z.mul_(2)
                z.sum().backward()
            return gradient

    model = mlp(2)
    with offload(model, "simulated", strategy=strategy):
        Inner.apply(model(X.to("simulated"))).sum().backward()
        y = Inner.apply(model(X.to("simulated"))).exp()
        y.mul_(2)
        with pytest.raises(RuntimeError, match=ERROR):
            y.sum().backward()


@STRATEGIES
def test_a_weight_that_another_thread_replaces_has_its_new_memory(strategy, monkeypatch):
    """After an operation has found its weights, and before it has the lock."""
    model, new = mlp(1), [torch.full((16, 16), 0.5)]
    with offload(model, "simulated", strategy=strategy) as session, torch.no_grad():
        model(X)
        weight, gather = model[0].weight, computing.gather

        def replacing(*args):
            found = gather(*args)
            if new:
                with torch._C.DisableTorchFunction():
                    weight.data = new.pop()
                    session.tensors.replaced(session.tensors.weights.owners[id(weight)])
            return found

        monkeypatch.setattr(computing, "gather", replacing)
        y = model(X)
        assert not new
    check(model, y)


def test_weights_are_added_while_a_gradient_moves():
    model = mlp(1)
    with offload(model, "simulated") as session:
        owners = session.tensors.weights.owners

        class Adds:
            """Adds a weight when its tensor is read, as another thread may."""

            @property
            def tensor(self):
                owners[-2] = next(iter(owners.values()))
                return X

        owners[-1] = Adds()
        try:
            tensor = torch.zeros(3)
            tensor.data = torch.ones(3)
        finally:
            del owners[-1], owners[-2]
    assert torch.equal(tensor, torch.ones(3))
