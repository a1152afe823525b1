"""Modules of different code or settings never share an output."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import cotensor  # noqa: E402
from cotensor.torch import share  # noqa: E402


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def store():
    with cotensor.Store() as store:
        yield store


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
    made = {"__name__": "somebodys", "BY": by}
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


TOLD = {
    "dataclass": lambda by: Has(Options(by)),
    "namespace": lambda by: Has(types.SimpleNamespace(scale=by)),
    "partial": lambda by: Has(functools.partial(times, by=by)),
    "closure": lambda by: Has(_closure(by)),
    "default": lambda by: Has(_default(by)),
    "enum": lambda by: Has(Mode(by)),
    "pattern": lambda by: Has(re.compile("a" * int(by))),
    "nested": lambda by: Has(_nested(by)),
    "global": lambda by: Has(_global_of(by)),
    "number and truth": lambda by: Has(True if by == 2.0 else 1),
    "helper": _helper,
    "decorated": _decorated,
    "property": _property,
    "class attribute": _class_attribute,
}
NOT_TOLD = {
    "tensor": lambda by: Has(torch.tensor(by)),
    "callable": lambda by: Has(Scale(by)),
    "deeper": lambda by: Has(_too_deep(by)),
    "tensor around": lambda by: Has(_closure(torch.tensor(by))),
    "other module": lambda by: Has([Has(by)]),
    "generator": lambda by: Has(functools.partial(lambda x, g, by: x * by, g=torch.Generator(), by=by)),
}


@pytest.mark.parametrize("make", [*TOLD.values(), *NOT_TOLD.values()], ids=[*TOLD, *NOT_TOLD])
def test_different_code_and_settings_are_never_taken_for_the_same(store, make):
    one, same, other = make(2.0).eval(), make(2.0).eval(), make(3.0).eval()
    x = torch.arange(1.0, 4.0)
    expected = one(x), other(x)
    shared = [share(module, store=store) for module in (one, same, other)]
    assert torch.equal(one(x), expected[0]) and torch.equal(same(x), expected[0]) and torch.equal(other(x), expected[1])
    if make in TOLD.values():
        assert [(one.computed, one.hits) for one in shared] == [(1, 0), (0, 1), (1, 0)]
    else:
        assert all(one.computed == one.hits == 0 and sum(one.private.values()) == 1 for one in shared)


@pytest.mark.parametrize("kind", ["dataclass", "namespace", "list", "class"])
def test_a_setting_that_is_changed_where_it_is_changes_the_result(store, kind):
    module = Has({"dataclass": Options(2.0), "namespace": types.SimpleNamespace(scale=2.0)}.get(kind, [2.0]))
    if kind == "class":
        module = _class_attribute(2.0)
    module.eval()
    share(module, store=store)
    x = torch.ones(3)
    assert torch.equal(module(x), x * 2)
    if kind == "class":
        type(module).factor = 3.0
    elif kind == "list":
        module.setting[0] = 3.0
    else:
        module.setting.scale = 3.0
    assert torch.equal(module(x), x * 3)


@pytest.mark.parametrize("kind", ["Bert", "ViT", "CLIPVision"])
def test_models_of_transformers_are_shared(store, kind):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    sizes.update({"vocab_size": 60} if kind == "Bert" else {"image_size": 32, "patch_size": 8})

    def make(**more):
        torch.manual_seed(3)
        return getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes, **more)).eval()

    one, same, other = make(), make(), make(hidden_act="relu")
    x = torch.arange(8).view(1, 8) if kind == "Bert" else torch.randn(1, 3, 32, 32)
    expected = one(x), other(x)
    shared = [share(module, store=store) for module in (one, same, other)]
    one(x)
    assert torch.equal(same(x).last_hidden_state, expected[0].last_hidden_state)
    assert torch.equal(other(x).last_hidden_state, expected[1].last_hidden_state)
    assert [(one.computed, one.hits) for one in shared] == [(1, 0), (0, 1), (1, 0)]
    assert not any(one.private for one in shared)
