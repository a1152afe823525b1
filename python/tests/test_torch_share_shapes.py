"""A captured graph runs only for shapes for which the module's code computes the same."""

from __future__ import annotations

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
nn = torch.nn

from share_common import no_gradients, shared  # noqa: E402

without_gradients = no_gradients()
store = local_store("module")


SPECIAL_SIZES = frozenset({3})


def _above_five(self, x):
    return x * 2 if x.shape[0] > 5 else x


def _even(self, x):
    return x * 2 if x.shape[0] % 2 == 0 else x


def _looked_up(self, x):
    return x * 2 if int(x.shape[0]) in SPECIAL_SIZES else x


def _written_out(self, x):
    return x * len(f"{x.shape[0]}")


def _is_number(self, x):
    return x * 2 if type(x.shape[0]) is int else x


def _loop(self, x):
    for number in range(x.shape[0]):
        x = x + number
    return x


def _length(self, x):
    return x * len(x)


def _square(self, x):
    return x @ x if x.shape[0] == x.shape[1] else x * 3


def _elements(self, x):
    return x * 2 if x.numel() >= 16 else x


def _positions(self, x):
    return x + torch.arange(40)[: x.shape[0], None]


BRANCHES = {
    "above five": _above_five,
    "even": _even,
    "looked up": _looked_up,
    "written out": _written_out,
    "type": _is_number,
    "loop": _loop,
    "length": _length,
    "square": _square,
    "elements": _elements,
    "positions": _positions,
}


@pytest.mark.parametrize("function", BRANCHES.values(), ids=BRANCHES)
def test_branches_on_sizes_give_the_result_of_the_module(store, function):
    module, sharing = shared(store, function)
    for size in (4, 6, 3, 1, 0, 12, 4):
        x = torch.arange(size * 4.0).view(size, 4)
        assert torch.equal(module(x), type(module).forward(module, x)), size
    assert sharing.hits >= 1


def test_one_graph_serves_all_sizes(store):
    module, sharing = shared(store, lambda self, x: self.linear(x).softmax(0))
    for size in (3, 17, 2, 9):
        x = torch.randn(size, 4)
        assert torch.equal(module(x), type(module).forward(module, x))
    assert len(sharing.spaces) == 1 and sharing.computed == 4
    module(torch.randn(1, 4))
    module(torch.randn(0, 4))
    assert len(sharing.spaces) == 3 or sharing.private, "sizes 0 and 1 have graphs of their own"


def test_equal_sizes_by_chance_stay_independent(store):
    module, _ = shared(store, lambda self, x, y: (x * 2, y + 1))
    for sizes in ((3, 3), (3, 5), (5, 3), (4, 4)):
        given = [torch.ones(size, 2) for size in sizes]
        for found, expected in zip(module(*given), type(module).forward(module, *given)):
            assert torch.equal(found, expected)


ARGUMENTS = [
    {},
    {"y": None},
    {"y": 2},
    {"y": 2.0},
    {"y": True},
    {"y": -0.0},
    {"y": 0.0},
    {"y": float("nan")},
    {"y": "text"},
    {"y": [1, 2]},
    {"y": (1, 2)},
    {"y": {"a": 1, "b": 2}},
    {"y": {"b": 2, "a": 1}},
    {"y": torch.float16},
]


def test_other_arguments_are_part_of_the_key(store):
    def function(self, x, y="none"):
        return [x * 1, [repr(y)]]

    module, sharing = shared(store, function)
    x = torch.ones(2, 4)
    for more in ARGUMENTS:
        for _ in range(2):
            assert module(x, **more)[1] == [repr(more.get("y", "none"))], more
    assert sharing.computed == len(ARGUMENTS) == sharing.hits


def test_order_of_keyword_arguments_is_irrelevant(store):
    module, sharing = shared(store, lambda self, x, y, **more: x - y)
    one, other = torch.ones(2, 4), torch.zeros(2, 4)
    assert torch.equal(module(x=one, y=other), module(y=other, x=one))
    assert torch.equal(module(one, y=other), one) and torch.equal(module(other, y=one), -one)


def test_repeated_tensor_differs_from_equal_tensors(store):
    module, sharing = shared(store, lambda self, x, y: x * 2 if x is y else x)
    x = torch.ones(2, 4)
    assert torch.equal(module(x, x), x * 2) and torch.equal(module(x, x.clone()), x)
    assert torch.equal(module(x, x), x * 2) and sharing.computed == 2


def test_strides_are_part_of_the_key(store):
    module, sharing = shared(store, lambda self, x: x * 2 if x.is_contiguous() else x)
    x = torch.arange(16.0).view(4, 4)
    for given in (x, x.t(), x[::2], x[:, 1:], x[1:3], x.t()[1:], x[None, :, 0], x.expand(2, 4, 4)):
        expected = type(module).forward(module, given)
        found = module(given)
        dense = given.is_contiguous() or given.t().is_contiguous() if given.ndim == 2 else given.is_contiguous()
        assert torch.equal(found, expected) or not dense, "the graph gets tensors without gaps"


def test_number_of_graphs_is_bounded(store, monkeypatch):
    from cotensor.torch.outputs import calls

    monkeypatch.setattr(calls, "_CAPTURES_MAX", 2)
    module, sharing = shared(store, lambda self, x, y: x * y)
    for number in range(4):
        assert torch.equal(module(torch.ones(3), number), torch.full((3,), float(number)))
    assert len(sharing.spaces) == 2 and sum(sharing.private.values()) == 2
