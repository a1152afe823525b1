"""Shared outputs of modules: computed once for equal modules and inputs."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
nn = torch.nn

from share_common import no_gradients  # noqa: E402

import cotensor  # noqa: E402
from cotensor.torch import share, unshare  # noqa: E402


class Encoder(nn.Module):
    def __init__(self, seed: int = 0, width: int = 16, dropout: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(8, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.scale = scale

    def forward(self, x, *, offset=0.0, extra=None):
        y = self.dropout(torch.relu(self.norm(self.first(x)))) * self.scale + offset
        return {"last": y, "pooled": (y.mean(-1), [y.sum()]), "n": len(x)} if extra else y


without_gradients = no_gradients()
store = local_store()


def test_equal_encoders_compute_once(store):
    one, other = Encoder().eval(), Encoder().eval()
    x = torch.randn(4, 8)
    expected = one(x)
    first, second = share(one, store=store), share(other, store=store)
    assert torch.equal(one(x), expected) and torch.equal(other(x.clone()), expected)
    assert first.spaces == second.spaces and len(first.spaces) == 1
    assert (first.computed, first.hits, second.computed, second.hits) == (1, 0, 0, 1)
    assert torch.equal(other(x + 1), Encoder().eval()(x + 1)), "another input has another result"
    unshare(other)
    other(x)
    assert (second.hits, second.computed) == (1, 1)
    with pytest.raises(cotensor.InvalidError, match="not shared"):
        unshare(other)


@pytest.mark.parametrize(
    "different",
    [lambda: Encoder(seed=1), lambda: Encoder(width=17), lambda: Encoder(scale=2.0)],
    ids=["weights", "shape", "setting"],
)
def test_different_encoders_do_not_share(store, different):
    one, other = Encoder().eval(), different().eval()
    x = torch.randn(4, 8)
    expected = other(x)
    first, second = share(one, store=store), share(other, store=store)
    one(x)
    assert torch.equal(other(x), expected)
    assert first.spaces != second.spaces


def test_nested_outputs_are_restored(store):
    module = Encoder().eval()
    shared = share(module, store=store)
    x = torch.randn(3, 8)
    first = module(x, offset=1.0, extra=True)
    second = module(x, offset=1.0, extra=True)
    assert (shared.computed, shared.hits) == (1, 1)
    assert list(second) == ["last", "pooled", "n"] and second["n"] == 3
    assert isinstance(second["pooled"], tuple) and isinstance(second["pooled"][1], list)
    assert torch.equal(second["pooled"][1][0], first["pooled"][1][0])
    assert second["pooled"][1][0].shape == ()
    module(x, offset=2.0, extra=True)
    assert shared.computed == 2, "plain numbers are part of the key"


def test_writes_into_a_shared_output_are_private(store):
    module = Encoder().eval()
    share(module, store=store)
    x = torch.randn(3, 8)
    first = module(x)
    expected = first.clone()
    first.zero_()
    mine = module(x)
    assert torch.equal(mine, expected)
    mine.zero_()
    assert torch.equal(module(x), expected)


def test_dtype_shape_and_strides_are_part_of_the_key(store):
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
    assert shared.computed == 5, "strides are part of the key, because kernels sum in their order"
    module(torch.zeros(3, 2).t())
    module(torch.zeros(2, 3))
    assert shared.hits == 2


def test_outputs_keep_their_strides(store):
    class Turned(nn.Module):
        def forward(self, x):
            turned = x.t() * 2
            lasting = x.view(1, 2, 3, 1).to(memory_format=torch.channels_last)
            return turned, [turned, lasting], x.new_zeros(0, 2), x.sum()

    module = Turned().eval()
    expected = module(torch.arange(6.0).view(2, 3))
    shared = share(module, store=store)
    x = torch.arange(6.0).view(2, 3)
    made, found = module(x), module(x)
    assert shared.hits == 1
    flat = [(one[0], *one[1], *one[2:]) for one in (expected, made, found)]
    for known, *others in zip(*flat):
        for other in others:
            assert torch.equal(known, other) and known.stride() == other.stride()
    assert found[0] is found[1][0]


def test_output_with_overlaps_becomes_row_major(store):
    class Spread(nn.Module):
        def forward(self, x):
            return x[:, None].expand(2, 3)

    module = Spread().eval()
    shared = share(module, store=store)
    assert module(torch.ones(2)).is_contiguous()
    assert module(torch.ones(2)).is_contiguous() and shared.hits == 1


def test_wrong_options_are_named(store):
    module = Encoder().eval()
    wrongs = [{"module": None}, {"store": 5}, {"name": 5}, {"holder": ""}, {"key": ""}, {"operators": "x"}]
    for wrong in (*wrongs, {"verify": 2}, {"verify": True}):
        with pytest.raises(cotensor.InvalidError) as raised:
            share(**{"module": module, "store": store, **wrong})
        assert raised.value.field == next(iter(wrong))
    share(module, store=store)
    with pytest.raises(cotensor.InvalidError, match="already shared"):
        share(module, store=store)


def test_private_calls_are_counted_by_reason(store):
    module = Encoder(dropout=0.5)
    shared = share(module, store=store)
    x = torch.randn(2, 8)
    module(x)
    assert shared.private == {"training mode": 1}
    module.eval()
    with torch.enable_grad():
        assert module(x).requires_grad
    assert sum(shared.private.values()) == 2 and shared.computed == 0
    with pytest.raises(cotensor.UnsupportedError, match="gradients"), torch.enable_grad():
        shared.capture(x)
    assert shared.capture(x) == shared.spaces[0]


def test_sharing_continues_after_a_call_with_hooks(store):
    module = Encoder().eval()
    shared = share(module, store=store)
    x = torch.randn(2, 8)
    seen = []
    handle = module.first.register_forward_hook(lambda *_: seen.append(1))
    module(x)
    assert shared.private["an inner module has hooks"] == 1 and seen == [1]
    handle.remove()
    module(x)
    module(x)
    assert (shared.computed, shared.hits) == (1, 1) and seen == [1]
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(2))
    try:
        module(x)
    finally:
        handle.remove()
    assert 2 in seen and shared.private["there are hooks on all modules"] == 1


def test_hooks_of_the_module_run_at_each_call(store):
    module = Encoder().eval()
    module.register_forward_hook(lambda module, args, output: output * 10)
    expected = Encoder().eval()(torch.ones(2, 8)) * 10
    shared = share(module, store=store)
    for _ in range(2):
        assert torch.equal(module(torch.ones(2, 8)), expected)
    assert (shared.computed, shared.hits) == (1, 1)


def test_result_that_the_store_refuses_is_computed_privately():
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


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copy_of_a_shared_module_is_not_shared(store, duplicate):
    module = Encoder().eval()
    shared = share(module, store=store)
    x = torch.randn(2, 8)
    expected = module(x)
    made = duplicate(module)
    assert "forward" not in vars(made) and set(vars(made)) == set(vars(Encoder().eval()))
    assert torch.equal(made(x), expected) and (shared.hits, shared.computed) == (0, 1)
    made.norm = nn.Identity().eval()
    assert torch.equal(made(x), torch.relu(made.first(x))), "a copy uses its own submodules"
    share(made, store=store)


def test_saved_and_exported_modules_are_not_shared(store):
    module = nn.Sequential(Encoder().eval(), nn.Linear(16, 2)).eval()
    x = torch.randn(2, 8)
    expected = module(x)
    share(module[0], store=store)
    share(module, store=store)
    file = io.BytesIO()
    torch.save(module, file)
    assert b"cotensor" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x), expected) and "forward" not in vars(loaded[0])
    program = torch.export.export(module, (x,), strict=False)
    assert torch.equal(program.module()(x), expected)
    assert list(module.state_dict()) == list(program.state_dict)
    assert torch.equal(torch.jit.trace(module, x)(x), expected)


_CHILD = """
import sys, torch, cotensor
from cotensor.torch import share
sys.path.insert(0, sys.argv[2])
from test_torch_share import Encoder
store = cotensor.connect(sys.argv[1])
module = Encoder().eval()
shared = share(module, store=store)
torch.manual_seed(5)
size = int(sys.argv[3])
with torch.no_grad():
    module(torch.randn(size, 8), extra=False)
    torch.manual_seed(6)
    y = module(torch.randn(4, 8))
print(shared.hits, shared.computed, len(shared.spaces), float(y.sum()))
"""


def test_another_process_reuses_the_output(daemon):
    def run(size):
        folder = str(Path(__file__).parent)
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(daemon.socket), folder, size], capture_output=True, text=True, timeout=110
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, second = run("5"), run("7")
    assert first[:3] == ["0", "2", "2"]
    # Captures with other inputs give the same graph.
    assert second[:3] == ["1", "1", "2"] and first[3] == second[3]
    with daemon.connect() as store:
        assert sum(name.startswith("weights/") for name in store.names()) == 1
