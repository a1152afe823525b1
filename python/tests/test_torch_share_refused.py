"""Calls that cannot be shared: the reason is counted, and the module's own code computes the result."""

from __future__ import annotations

import random
import threading

import numpy
import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
nn = torch.nn

from share_common import assert_refused, no_gradients, shared  # noqa: E402

import cotensor  # noqa: E402
from cotensor.torch import share, unshare  # noqa: E402

without_gradients = no_gradients()
store = local_store()


def _restored_python_generator(self, x):
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    return x + drawn


def _restored_numpy_generator(self, x):
    state = numpy.random.get_state()
    drawn = float(numpy.random.rand())
    numpy.random.set_state(state)
    return x + drawn


def _restored_torch_generator(self, x):
    with torch.random.fork_rng(devices=[]):
        return x + torch.randn(4)


def _seeded_generator(self, x):
    return x + torch.randn(4, generator=torch.Generator().manual_seed(int(self.count)))


def _uninitialized(self, x):
    return torch.empty(4)


def _random_dropout(self, x):
    return nn.functional.dropout(x, 0.5, training=True)


def _random_attention(self, x):
    y = x[None, None]
    return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5)


RANDOM = {
    "torch": lambda self, x: x + torch.randn(4),
    "numpy": lambda self, x: x + float(numpy.random.rand()),
    "python": lambda self, x: x + random.random(),
    "restored python": _restored_python_generator,
    "restored numpy": _restored_numpy_generator,
    "restored torch": _restored_torch_generator,
    "seeded": _seeded_generator,
    "dropout": _random_dropout,
    "attention with dropout": _random_attention,
    "uninitialized memory": _uninitialized,
}


@pytest.mark.parametrize("function", RANDOM.values(), ids=RANDOM)
def test_random_module_is_refused(store, function):
    module, sharing = shared(store, function, count=3)
    x = torch.zeros(3, 4)
    states = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[2]
    if function is _uninitialized:
        assert_refused(module, sharing, "uninitialized", x)
        return
    module(x)
    module(x)
    assert sharing.computed == sharing.hits == 0 and sum(sharing.private.values()) == 2
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    numpy.random.seed(3)
    first = module(x)
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    numpy.random.seed(3)
    assert torch.equal(first, type(module).forward(module, x)), "a refused call draws the same random numbers"


def test_other_numpy_generator_does_not_prevent_sharing(store):
    module, sharing = shared(store, lambda self, x: x + 1)
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64())
    try:
        module(torch.ones(2, 8))
    finally:
        numpy.random.set_bit_generator(before)
    assert sharing.computed == 1


class InPlace(nn.Module):
    def forward(self, x):
        return x.add_(1)


class InPlaceOnAView(nn.Module):
    def forward(self, x):
        x.t()[0].data.mul_(2)
        return x + 1


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


class CountsInTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = torch.zeros(1)

    def forward(self, x):
        self.n.add_(1)
        return x + self.n


class CountsInNewBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x):
        self.n = self.n + 1
        return x + self.n


class WritesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        self.weight.data.view(-1)[0] += 1
        return x + self.weight


@pytest.mark.parametrize(
    "kind", [InPlace, InPlaceOnAView, Counts, CountsInBuffer, CountsInTensor, CountsInNewBuffer, WritesItsWeight]
)
def test_module_that_changes_its_input_or_itself_is_not_shared(store, kind):
    module, alone = kind().eval(), kind().eval()
    sharing = share(module, store=store)
    for _ in range(3):
        x, y = torch.ones(2, 2), torch.ones(2, 2)
        assert torch.equal(module(x), alone(y)) and torch.equal(x, y)
    assert sharing.computed == sharing.hits == 0
    assert sum(sharing.private.values()) == 3, dict(sharing.private)


class FillsItsArgument(nn.Module):
    def forward(self, features, other=None):
        features["doubled"] = features["x"] * 2
        if other is not None:
            other.append(1)
            return features["x"]
        return features


def test_hits_fill_a_dict_that_the_module_fills(store):
    module = FillsItsArgument().eval()
    sharing = share(module, store=store)
    for _ in range(3):
        features = {"x": torch.ones(3)}
        assert module(features) is features and torch.equal(features["doubled"], torch.full((3,), 2.0))
    assert (sharing.computed, sharing.hits) == (1, 2)
    given, others = {"x": torch.ones(3)}, []
    module(given, others)
    assert others == [1] and "doubled" in given, "a call that changes another argument is not shared"
    assert list(sharing.private) == ["the module changes its arguments"]


def test_data_dependent_control_flow_is_refused(store):
    module, sharing = shared(store, lambda self, x: x * 2 if x.sum() > 0 else x - 1)
    for x in (torch.ones(2, 4), -torch.ones(2, 4)):
        assert torch.equal(module(x), type(module).forward(module, x))
    assert sharing.computed == sharing.hits == 0
    with pytest.raises(cotensor.UnsupportedError, match="torch.export cannot capture the module"):
        sharing.capture(torch.ones(2, 4))


def test_number_read_from_a_tensor_is_not_a_constant(store):
    module, sharing = shared(store, lambda self, x: x * x[0, 0].item())
    for number in (2.0, 3.0, 2.0):
        x = torch.full((2, 4), number)
        assert torch.equal(module(x), x * number)
    module, sharing = shared(store, lambda self, x: [x, x[0, 0].item()])
    for number in (2.0, 3.0, 2.0):
        assert module(torch.full((2, 4), number))[1] == number
    assert sharing.computed == 0, "a graph cannot return a Python number that depends on the input"


def test_operator_of_another_library_must_be_trusted(store):
    library = torch.library.Library("shared_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("twice", torch.empty_like, "Meta")
    try:
        module, sharing = shared(store, lambda self, x: torch.ops.shared_test.twice(x))
        assert_refused(module, sharing, "shared_test::twice", torch.ones(3))
        unshare(module)
        trusting = share(module, store=store, operators=["shared_test::twice"])
        module(torch.ones(3))
        assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0)) and trusting.hits == 1
    finally:
        library._destroy()


def test_operator_with_a_replaced_kernel_is_not_shared(store):
    module, sharing = shared(store, lambda self, x: torch.special.i1e(x))
    x = torch.ones(3)
    module(x)
    library = torch.library.Library("aten", "IMPL", "CPU")
    try:
        library.impl("special_i1e", lambda x: x * 100)
        assert torch.equal(module(x + 1), (x + 1) * 100), "the process's own kernel runs"
        assert torch.equal(module(x), x * 100)
    finally:
        library._destroy()
    assert (sharing.computed, sharing.hits) == (1, 0)
    module(x)
    assert sharing.hits == 1


class _FailingStore:
    """A store of which one method fails."""

    def __init__(self, store, method, error) -> None:
        self._store, self._method, self._error = store, method, error
        self.fails = False

    def __getattr__(self, name):
        if name != self._method or not self.fails:
            return getattr(self._store, name)

        def fail(*_, **__):
            raise self._error("the daemon has ended")

        return fail


@pytest.mark.parametrize("method", ["claim", "empty"])
@pytest.mark.parametrize("error", [cotensor.TimedOutError, cotensor.ConflictError, cotensor.IoError])
@pytest.mark.parametrize("when", ["before", "after"])
def test_store_errors_do_not_fail_calls(store, method, error, when):
    module = nn.Linear(8, 4).eval()
    x = torch.randn(2, 8)
    expected = module(x)
    failing = _FailingStore(store, method, error)
    failing.fails = when == "before"
    sharing = share(module, store=failing)
    failing.fails = True
    assert torch.equal(module(x), expected)
    assert sharing.private == {error.__name__: 1}
    unshare(module)
    again = share(module, store=store)
    module(x)
    assert again.computed == 1, "the ticket was dropped"


def test_result_that_cannot_be_stored_is_computed_privately(store):
    class Own(torch.Tensor):
        pass

    module, sharing = shared(store, lambda self, x: x * 1)
    x = torch.tensor([1 + 2j, 3j])
    assert torch.equal(module(x), x) and torch.equal(module(x.conj()), x.conj())
    assert sharing.computed == 0 and sum(sharing.private.values()) == 2
    assert type(module(torch.zeros(2).as_subclass(Own))) is Own
    assert sharing.private["an input of type Own"] == 1


def test_failed_call_drops_its_ticket(store):
    fail = [True]

    def function(self, x):
        if fail[0]:
            raise RuntimeError("on purpose")
        return x + 1

    module, sharing = shared(store, function)
    x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="on purpose"):
        module(x)
    fail[0] = False
    assert torch.equal(module(x), x + 1) and sharing.computed == 1


def test_operator_errors_are_raised(store):
    module, sharing = shared(store, lambda self, x: self.linear.weight[x])
    module(torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        module(torch.tensor([0, 9]))
    assert torch.equal(module(torch.tensor([0, 1])), torch.eye(4)[:2]) and sharing.hits == 1


def test_stored_traceback_does_not_hold_the_ticket(store):
    one, _ = shared(store, lambda self, x: self.linear.weight[x])
    other, _ = shared(store, lambda self, x: self.linear.weight[x])
    for module in (one, other):
        module(torch.tensor([0, 1]))
    kept = []
    for module in (one, other):
        with pytest.raises(IndexError) as caught:
            module(torch.tensor([0, 9]))
        kept.append(caught)


def test_module_that_cannot_be_copied_is_refused(store):
    module = nn.Linear(2, 2).eval()
    module.lock = threading.Lock()
    with pytest.raises(cotensor.UnsupportedError, match="key="):
        share(module, store=store)
    share(module, store=store, key="one")


def test_modules_without_shareable_weights_are_refused_by_name(store):
    with torch.device("meta"):
        module = nn.Linear(2, 2).eval()
    with pytest.raises(cotensor.InvalidError) as raised:
        share(module, store=store)
    assert raised.value.field == "weight"


def test_older_torch_is_refused(store, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.4.1+cpu")
    with pytest.raises(cotensor.UnsupportedError, match="2.15 or newer"):
        share(nn.Linear(2, 2).eval(), store=store)


def test_key_identifies_the_module(store):
    class Uncapturable(nn.Module):
        def __init__(self):
            super().__init__()
            self.runs = 0
            self.lock = threading.Lock()

        def forward(self, x):
            self.runs += 1
            return x * 2 if x.sum() > 0 else x

    one, other, third = Uncapturable().eval(), Uncapturable().eval(), Uncapturable().eval()
    first, second = share(one, store=store, key="odd"), share(other, store=store, key="odd")
    share(third, store=store, key="another")
    for module in (one, other, third):
        assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
        assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
    assert (one.runs, other.runs, third.runs) == (1, 0, 1)
    assert first.spaces == second.spaces


def test_key_does_not_hide_a_changed_input(store):
    for function in (lambda self, x: x.add_(1), lambda self, x: x + torch.rand(3), lambda self, x: x + random.random()):
        module = shared(store, function)[0]
        unshare(module)
        sharing = share(module, store=store, key="k")
        module(torch.zeros(3))
        assert sharing.computed == 0 and sum(sharing.private.values()) == 1, function


def test_verify_finds_a_wrong_result_and_ends_sharing(store):
    module, _ = shared(store, lambda self, x: x * self.scale, scale=2.0)
    unshare(module)
    one = share(module, store=store, key="k", verify=1.0)
    module(torch.ones(3))
    module(torch.ones(3))
    assert (one.computed, one.hits) == (1, 1)
    module.scale = 3.0
    with pytest.raises(cotensor.CorruptError, match="not what the module computes"):
        module(torch.ones(3))
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 3.0))
    assert one.private == {"a result in the store was wrong": 1} and one.hits == 2
    one.refresh()
    module(torch.full((3,), 2.0))
    assert one.computed == 2


def test_verify_recomputes_by_the_captured_graph(store):
    module = shared(store, lambda self, x: x * self.scale, scale=2.0)[0]
    unshare(module)
    sharing = share(module, store=store, verify=1)
    x = torch.ones(3)
    module(x)
    module.scale = 3.0
    for _ in range(3):
        assert torch.equal(module(x), x * 2)
    assert sharing.hits == 3
