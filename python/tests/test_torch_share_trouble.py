"""What cannot be shared, or goes wrong with sharing, is computed as if nothing were shared."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import cotensor  # noqa: E402
from cotensor.torch import share, unshare  # noqa: E402


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def store():
    with cotensor.Store() as store:
        yield store


class InPlace(nn.Module):
    def forward(self, x):
        return x.add_(1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x + self.n


class CountsInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x):
        self.n += 1
        return x + self.n


@pytest.mark.parametrize("kind", [InPlace, Counts, CountsInBuffer])
def test_what_changes_its_input_or_itself_is_not_shared(store, kind):
    module, alone = kind().eval(), kind().eval()
    shared = share(module, store=store)
    for _ in range(3):
        x, y = torch.zeros(3), torch.zeros(3)
        assert torch.equal(module(x), alone(y)) and torch.equal(x, y)
    assert shared.computed == shared.hits == 0
    assert shared.private == {"it changes its input or itself": 3}


class _Broken:
    """A store whose daemon is gone, at one of its methods."""

    def __init__(self, store, method, error) -> None:
        self._store, self._method, self._error = store, method, error

    def __getattr__(self, name):
        if name != self._method:
            return getattr(self._store, name)

        def fail(*_, **__):
            raise self._error("gone")

        return fail


@pytest.mark.parametrize("method", ["claim", "empty"])
@pytest.mark.parametrize("error", [cotensor.TimedOutError, cotensor.ConflictError, cotensor.SystemFailure])
def test_trouble_with_the_store_makes_no_call_fail(store, method, error):
    module = nn.Linear(8, 4).eval()
    x = torch.randn(2, 8)
    expected = module(x)
    shared = share(module, store=_Broken(store, method, error))
    assert torch.equal(module(x), expected)
    assert shared.private == {error.__name__: 1}
    unshare(module)
    again = share(module, store=store)
    module(x)
    assert again.computed == 1, "the ticket was given back"


def test_what_cannot_be_stored_is_computed_privately(store):
    class Same(nn.Module):
        def forward(self, x):
            return x * 1

    class Own(torch.Tensor):
        pass

    module = Same().eval()
    shared = share(module, store=store)
    x = torch.tensor([1 + 2j, 3j])
    assert torch.equal(module(x), x) and torch.equal(module(x.conj()), x.conj())
    assert shared.computed == 0 and sum(shared.private.values()) == 2
    assert type(module(torch.zeros(2).as_subclass(Own))) is Own
    assert shared.private["an input of type Own"] == 1


def test_a_kept_traceback_keeps_nobody_waiting(store):
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("out of luck")

    one, other = Fails().eval(), Fails().eval()
    share(one, store=store), share(other, store=store)
    kept = []
    for module in (one, other):
        with pytest.raises(RuntimeError, match="out of luck") as caught:
            module(torch.zeros(3))
        kept.append(caught)
