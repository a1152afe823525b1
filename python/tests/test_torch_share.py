"""Outputs of modules, computed once for all who ask."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import cotensor  # noqa: E402
from cotensor.torch import share, unshare  # noqa: E402


def ran() -> None:
    """Its attribute counts; what a class has would be part of the module."""


ran.times = 0


def torch_draw():
    return torch.randn(3)


def numpy_draw():
    return float(numpy.random.rand())


def python_draw():
    return random.random()


class Encoder(nn.Module):
    def __init__(self, seed: int = 0, width: int = 16, dropout: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.scale = scale
        self.runs = 0

    def forward(self, x, *, offset=0.0, extra=None):
        ran.times += 1
        y = self.dropout(torch.relu(self.norm(self.first(x)))) * self.scale + offset
        return {"last": y, "pooled": (y.mean(-1), [y.sum()]), "n": len(x)} if extra else y


@pytest.fixture(autouse=True)
def _no_gradients():
    ran.times = 0
    with torch.no_grad():
        yield


@pytest.fixture
def store():
    with cotensor.Store() as store:
        yield store


def test_the_second_model_with_the_same_encoder_computes_nothing(store):
    one, other = Encoder().eval(), Encoder().eval()
    x = torch.randn(4, 8)
    expected = one(x)
    first, second = share(one, store=store), share(other, store=store)
    assert first.space == second.space
    ran.times = 0
    assert torch.equal(one(x), expected) and torch.equal(other(x.clone()), expected)
    assert ran.times == 1
    assert (first.computed, first.hits, second.computed, second.hits) == (1, 0, 0, 1)
    assert torch.equal(other(x + 1), share_free(Encoder().eval())(x + 1)), "another input is another result"
    unshare(other)
    other(x)
    assert (second.hits, second.computed) == (1, 1)


def share_free(module):
    return module


@pytest.mark.parametrize(
    "different",
    [lambda: Encoder(seed=1), lambda: Encoder(width=17), lambda: Encoder(scale=2.0)],
    ids=["weights", "shape", "setting"],
)
def test_a_different_encoder_is_never_taken_for_the_same(store, different):
    one, other = Encoder().eval(), different().eval()
    x = torch.randn(4, 8)
    expected = other(x)
    assert share(one, store=store).space != share(other, store=store).space
    one(x)
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("by", ["step", "data", "replaced", "setting", "code"])
def test_what_changes_the_module_changes_the_result(store, by):
    module = Encoder().eval()
    shared = share(module, store=store)
    x = torch.randn(4, 8)
    before = module(x).clone()
    if by == "step":
        module.first.weight.add_(0.5)
    elif by == "data":
        module.first.weight.data.mul_(2)
    elif by == "replaced":
        module.first.weight = nn.Parameter(torch.ones_like(module.first.weight))
    elif by == "setting":
        module.scale = 3.0
    else:
        module.norm = nn.Identity().eval()
    after = module(x)
    assert not torch.equal(before, after)
    assert (shared.computed, shared.hits) == (2, 0)
    assert torch.equal(module(x), after) and shared.hits == 1


def test_outputs_of_any_shape_come_back_as_they_were(store):
    module = Encoder().eval()
    share(module, store=store)
    x = torch.randn(3, 8)
    first = module(x, offset=1.0, extra=True)
    second = module(x, offset=1.0, extra=True)
    assert ran.times == 1
    assert list(second) == ["last", "pooled", "n"] and second["n"] == 3
    assert isinstance(second["pooled"], tuple) and isinstance(second["pooled"][1], list)
    assert torch.equal(second["pooled"][1][0], first["pooled"][1][0])
    assert second["pooled"][1][0].shape == ()
    module(x, offset=2.0, extra=True)
    assert ran.times == 2, "numbers among the arguments are part of the input"


def test_writing_into_a_shared_output_is_the_writers_own(store):
    module = Encoder().eval()
    share(module, store=store)
    x = torch.randn(3, 8)
    module(x)
    mine = module(x)
    expected = mine.clone()
    mine.zero_()
    assert torch.equal(module(x), expected)


def test_dtypes_and_shapes_tell_inputs_apart(store):
    class Same(nn.Module):
        def forward(self, x):
            return x * 1

    module = Same().eval()
    shared = share(module, store=store)
    zeros = torch.zeros(2, 3)
    for x in (zeros, zeros.view(3, 2), zeros.to(torch.float64), zeros.to(torch.int64)):
        result = module(x)
        assert result.shape == x.shape and result.dtype == x.dtype
    assert shared.computed == 4
    module(torch.zeros(3, 2).t())
    assert shared.computed == 5, "kernels add in another order where elements lie otherwise"
    module(torch.zeros(3, 2).t())
    module(torch.zeros(2, 3))
    assert shared.hits == 2


def test_outputs_lie_as_they_were_made(store):
    class Turned(nn.Module):
        def forward(self, x):
            turned = x.t() * 2
            lasting = x.view(1, 2, 3, 1).to(memory_format=torch.channels_last)
            return turned, [turned, lasting], torch.zeros(0, 2), x.sum()

    module = Turned().eval()
    shared = share(module, store=store)
    x = torch.randn(2, 3)
    made, found = module(x), module(x)
    assert shared.hits == 1
    for one, other in zip((made[0], *made[1], *made[2:]), (found[0], *found[1], *found[2:])):
        assert torch.equal(one, other) and one.stride() == other.stride()
    assert found[0] is found[1][0]


def test_outputs_that_do_not_cross_as_they_are(store):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.what = "spread"

        def forward(self, x):
            return x[:, None].expand(2, 3) if self.what == "spread" else self.weight

    module = Odd().eval()
    shared = share(module, store=store)
    module(torch.ones(2))
    assert module(torch.ones(2)).is_contiguous() and shared.hits == 1, "what has gaps comes row by row"
    module.what = "weight"
    assert module(torch.ones(2)).requires_grad
    assert shared.computed == 1 and list(shared.private) == ["an output that wants gradients"]


def test_another_generator_of_numpys_changes_nothing(store):
    module = Encoder().eval()
    share(module, store=store)
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64())
    try:
        module(torch.ones(2, 8))
    finally:
        numpy.random.set_bit_generator(before)


def test_wrong_options_are_named(store):
    module = Encoder().eval()
    for wrong in ({"module": None}, {"store": 5}, {"name": 5}, {"holder": ""}):
        with pytest.raises(cotensor.InvalidError) as raised:
            share(**{"module": module, "store": store, **wrong})
        assert raised.value.field == next(iter(wrong))


def test_why_a_call_is_private(store):
    module = Encoder(dropout=0.5)
    shared = share(module, store=store)
    x = torch.randn(2, 8)
    module(x)
    assert shared.private == {"training mode": 1}
    module.eval()
    with torch.enable_grad():
        assert module(x).requires_grad
    assert sum(shared.private.values()) == 2 and shared.computed == 0
    module.first.register_forward_hook(lambda *_: None)
    module(x)
    assert shared.private["hooks on an inner module"] == 1
    with pytest.raises(cotensor.InvalidError, match="shared already"):
        share(module, store=store)


def test_what_draws_random_numbers_is_not_shared(store):
    class Noise(nn.Module):
        def __init__(self, draw):
            super().__init__()
            self.draw = draw

        def forward(self, x):
            return x + self.draw()

    for draw in (torch_draw, numpy_draw, python_draw):
        module = Noise(draw).eval()
        shared = share(module, store=store)
        x = torch.zeros(3)
        assert not torch.equal(module(x), module(x))
        assert shared.computed == 0 and sum(shared.private.values()) == 2, shared.private


def test_a_module_that_fails_leaves_nothing_behind(store):
    class Fails(nn.Module):
        fail = True

        def forward(self, x):
            if Fails.fail:
                raise RuntimeError("out of luck")
            return x + 1

    module = Fails().eval()
    shared = share(module, store=store)
    x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="out of luck"):
        module(x)
    Fails.fail = False
    assert torch.equal(module(x), x + 1) and shared.computed == 1


def test_what_the_store_refuses_is_computed_privately():
    with cotensor.Store(allowed_types=["vision_embedding"]) as store:
        module = Encoder().eval()
        text = share(module, store=store, kind="text_embedding")
        x = torch.randn(2, 8)
        assert torch.equal(module(x), module(x))
        assert text.computed == 0 and text.private == {"RefusedError": 2}
        unshare(module)
        vision = share(module, store=store, kind="vision_embedding")
        module(x)
        module(x)
        assert (vision.computed, vision.hits) == (1, 1)


_CHILD = """
import sys, torch, cotensor
from cotensor.torch import share
sys.path.insert(0, sys.argv[2])
from test_torch_share import Encoder
store = cotensor.connect(sys.argv[1])
module = Encoder().eval()
shared = share(module, store=store)
torch.manual_seed(5)
with torch.no_grad():
    y = module(torch.randn(4, 8), extra=True)
print(shared.hits, shared.computed, float(y["last"].sum()))
"""


def test_another_process_does_not_compute_it_again(daemon):
    from pathlib import Path

    def run():
        folder = str(Path(__file__).parent)
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(daemon.socket), folder], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, second = run(), run()
    assert first[:2] == ["0", "1"] and second[:2] == ["1", "0"] and first[2] == second[2]
