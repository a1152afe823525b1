"""Modules with different results never share outputs. Changes after `share` have no effect until `refresh`."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import re
import sys
import types

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
nn = torch.nn

from share_common import no_gradients  # noqa: E402
from share_common import shared as shared_by  # noqa: E402

from cotensor.torch import attach, publish, refresh, share  # noqa: E402

without_gradients = no_gradients()
store = local_store()


@dataclasses.dataclass
class Options:
    scale: float


class Mode(enum.Enum):
    DOUBLE = 2.0
    TRIPLE = 3.0


def times(x, by):
    return x * by


def decorated(by):
    def decorate(function):
        @functools.wraps(function)
        def run(self, x):
            return function(self, x) * by

        return run

    return decorate


class Has(nn.Module):
    def __init__(self, setting) -> None:
        super().__init__()
        self.setting = setting

    def forward(self, x):
        setting = self.setting
        if isinstance(setting, (Options, types.SimpleNamespace)):
            return x * setting.scale
        if isinstance(setting, Mode):
            return x * setting.value
        if isinstance(setting, re.Pattern):
            return x * len(setting.pattern)
        if isinstance(setting, (set, collections.deque)):
            return x * sum(setting)
        while isinstance(setting, list):
            setting = setting[0]
        return setting(x) if callable(setting) else x * setting


class Scale:
    def __init__(self, by) -> None:
        self.by = by

    def __call__(self, x):
        return x * self.by


def _closure(by):
    return lambda x: x * by


def _default(by):
    def run(x, by=by):
        return x * by

    return run


def _nested(by):
    for _ in range(20):
        by = [by]
    return by


def _too_deep(by):
    for _ in range(60):
        by = [by]
    return by


def _global_of(by):
    source = "def helper(x):\n    return x * BY\ndef run(x):\n    return helper(x)\n"
    made = {"__name__": "other_module", "BY": by}
    exec(source, made)
    return made["run"]


def _helper(by):
    class Module(nn.Module):
        def forward(self, x):
            return self.helper(x)

        if by == 2.0:

            def helper(self, x):
                return x * 2.0

        else:

            def helper(self, x):
                return x + x + x

    return Module()


def _decorated(by):
    class Module(nn.Module):
        @decorated(by)
        def forward(self, x):
            return x

    return Module()


def _property(by):
    class Module(nn.Module):
        factor = property((lambda self: 2.0) if by == 2.0 else (lambda self: 3.0))

        def forward(self, x):
            return x * self.factor

    return Module()


def _class_attribute(by):
    class Module(nn.Module):
        factor = by

        def forward(self, x):
            return x * self.factor

    return Module()


def _slots(by):
    class Slotted:
        __slots__ = ("by",)

    made = Slotted()
    made.by = by
    return Has(lambda x: x * made.by)


def _lazy_import(by):
    """A Python module that only `forward` imports."""
    name = f"lazily_imported_{int(by)}"
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].BY = by

    def run(x):
        return x * __import__(name).BY

    return Has(run)


def _attention(by):
    """A function in a registry, found by name."""
    registry = {"custom": lambda x: x * by}
    made = Has(lambda x: registry["custom"](x))
    made.implementation = "custom"
    return made


def _patched(by):
    """One of two functions of torch."""
    return Has(lambda x: (torch.nn.functional.relu if by == 2.0 else torch.abs)(x) * by)


ALIKE = {
    "dataclass": lambda by: Has(Options(by)),
    "namespace": lambda by: Has(types.SimpleNamespace(scale=by)),
    "partial": lambda by: Has(functools.partial(times, by=by)),
    "closure": lambda by: Has(_closure(by)),
    "default": lambda by: Has(_default(by)),
    "enum": lambda by: Has(Mode(by)),
    "pattern": lambda by: Has(re.compile("a" * int(by))),
    "nested": lambda by: Has(_nested(by)),
    "global": lambda by: Has(_global_of(by)),
    "number and bool": lambda by: Has(True if by == 2.0 else 2),
    "helper": _helper,
    "decorated": _decorated,
    "property": _property,
    "class attribute": _class_attribute,
    "tensor": lambda by: Has(torch.tensor(by)),
    "callable": lambda by: Has(Scale(by)),
    "deeper": lambda by: Has(_too_deep(by)),
    "tensor around": lambda by: Has(_closure(torch.tensor(by))),
    "other module": lambda by: Has([Has(by)]),
    "set": lambda by: Has({by, 1.0}),
    "deque": lambda by: Has(collections.deque([by])),
    "slots": _slots,
    "lazy import": _lazy_import,
    "custom attention": _attention,
    "patched": _patched,
}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_different_code_and_settings_do_not_share(store, make):
    one, same, other = make(2.0).eval(), make(2.0).eval(), make(3.0).eval()
    x = torch.arange(1.0, 4.0)
    expected = one(x), other(x)
    shared = [share(module, store=store) for module in (one, same, other)]
    assert torch.equal(one(x), expected[0]) and torch.equal(same(x), expected[0]) and torch.equal(other(x), expected[1])
    assert [(one.computed, one.hits) for one in shared] == [(1, 0), (0, 1), (1, 0)]


def _patch_gelu(module, monkeypatch):
    monkeypatch.setattr(torch.nn.functional, "gelu", torch.abs)


def _class_method(module, monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x * 100)


def _hidden_write(module, monkeypatch):
    module.linear.weight.data[0] += 1


def _numpy_alias(module, monkeypatch):
    module.linear.weight.detach().numpy()[0] += 1


def _in_place(module, monkeypatch):
    module.linear.weight.add_(1)


CHANGES = {
    "set": lambda module, _: module.numbers.add(9.0),
    "deque": lambda module, _: module.queue.append(9.0),
    "attribute": lambda module, _: setattr(module, "scale", 9.0),
    "configuration": lambda module, _: setattr(module.options, "scale", 9.0),
    "part replaced": lambda module, _: setattr(module, "identity", nn.ReLU().eval()),
    "class": _class_method,
    "patched function": _patch_gelu,
    "global tensor": lambda module, _: GLOBAL.fill_(9.0),
    "plain tensor attribute": lambda module, _: module.plain.fill_(9.0),
    "in place": _in_place,
    ".data": _hidden_write,
    "numpy alias": _numpy_alias,
    "buffer": lambda module, _: module.buffer.fill_(9.0),
}
GLOBAL = torch.ones(4)


def _everything(self, x, y=None):
    total = sum(self.numbers) + sum(self.queue) + self.scale + self.options.scale
    x = self.identity(torch.nn.functional.gelu(self.linear(x)))
    return x * total + GLOBAL + self.plain + self.buffer


def shared_with_everything(store):
    """A shared module whose code reads everything that CHANGES modify."""
    module, shared = shared_by(
        store,
        _everything,
        numbers={1.0},
        queue=collections.deque([2.0]),
        scale=3.0,
        options=Options(4.0),
        identity=nn.Identity(),
        plain=torch.ones(4),
    )
    module.register_buffer("buffer", torch.ones(4))
    return module, shared


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_have_no_effect_until_refresh(store, change, monkeypatch):
    GLOBAL.fill_(1.0)
    module, shared = shared_with_everything(store)
    shared.refresh()
    x = torch.randn(3, 4)
    before = module(x)
    change(module, monkeypatch)
    after = type(module).forward(module, x)
    assert not torch.equal(before, after), "the change has an effect on the module's own code"
    assert torch.equal(module(x), before) and shared.hits == 1
    other = x + 1
    again = module(other)
    monkeypatch.undo()
    assert shared.computed == 2
    assert torch.equal(again, unchanged_module(store)(other)), "later inputs run the same graph"
    change(module, monkeypatch)
    expected = type(module).forward(module, x)
    shared.refresh()
    assert torch.equal(module(x), expected)
    GLOBAL.fill_(1.0)


def unchanged_module(store):
    """The function of the module of the test above, before the change."""
    module, _ = shared_with_everything(store)
    GLOBAL.fill_(1.0)
    return lambda x: type(module).forward(module, x)


def test_later_kind_of_call_is_captured_from_the_snapshot(store):
    module, shared = shared_by(store, lambda self, x, y=None: self.linear(x) * self.scale + (0 if y is None else y), scale=2.0)
    x = torch.ones(3, 4)
    module(x)
    module.scale = 5.0
    module.linear.weight.data.mul_(7)
    assert torch.equal(module(x, torch.ones(4)), torch.full((3, 4), 3.0))
    assert shared.computed == 2


@pytest.mark.parametrize("write", ["numpy", "torch"])
def test_graph_with_written_weights_is_not_used(store, write):
    """Writes to the snapshot's weights, which bypass torch's version counters, are found by the kernel's dirty pages."""
    module, shared = shared_by(store, lambda self, x: self.linear(x))
    x = torch.ones(3, 4)
    module(x)
    (weight,) = (one for one in shared._function._snapshot._weights if one.shape == (4, 4))
    if write == "numpy":
        weight.detach().numpy()[0, 0] = 9.0
    else:
        weight.detach()[0, 0] = 9.0
    assert torch.equal(module(x + 1), x + 1) and torch.equal(module(x), x)
    assert (shared.computed, shared.hits) == (1, 1)
    assert list(shared.private) == ["the weights of the graph were written in place"]
    shared.refresh()
    module(x + 1)
    assert shared.computed == 2


def test_module_is_captured_again_after_a_version_switch(store):
    def made(number):
        module = nn.Linear(2, 2, bias=False).eval()
        nn.init.constant_(module.weight, number)
        return module

    publish(made(1.0), "switched", store)
    module = made(0.0)
    attach(module, "switched", store)
    shared = share(module, store=store)
    x = torch.ones(1, 2)
    assert module(x)[0, 0] == 2
    publish(made(2.0), "switched", store)
    assert module(x)[0, 0] == 2 and shared.hits == 1
    refresh(module)
    assert module(x)[0, 0] == 4 and shared.computed == 2


@pytest.mark.parametrize("convert", [lambda module: module.double(), lambda module: module.half()], ids=["double", "half"])
def test_converted_module_runs_privately(store, convert):
    module, shared = shared_by(store, lambda self, ids: self.linear.weight[ids])
    ids = torch.tensor([0, 2])
    module(ids)
    convert(module)
    assert module(ids).dtype == module.linear.weight.dtype
    assert (shared.computed, shared.hits) == (1, 0) and sum(shared.private.values()) == 1
    shared.refresh()
    assert module(ids).dtype == module.linear.weight.dtype and shared.computed == 2


def test_functional_call_runs_the_module(store):
    module, shared = shared_by(store, lambda self, x: self.linear(x))
    x = torch.ones(2, 4)
    module(x)
    other = {"linear.weight": torch.zeros(4, 4), "linear.bias": torch.ones(4)}
    assert torch.equal(torch.func.functional_call(module, other, (x,)), torch.ones(2, 4))
    assert torch.equal(module(x), x) and shared.hits == 1
