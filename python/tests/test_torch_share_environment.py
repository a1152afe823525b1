"""Process and thread state that changes results is part of the key, or makes the call private."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest
from conftest import local_store

torch = pytest.importorskip("torch")
nn = torch.nn

from share_common import Calls, no_gradients, shared  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cotensor.torch import share  # noqa: E402
from cotensor.torch.outputs.capture import capturing  # noqa: E402

without_gradients = no_gradients()
store = local_store("module")


@contextlib.contextmanager
def _switched(set_to, during, after):
    set_to(during)
    try:
        yield
    finally:
        set_to(after)


def _deterministic():
    return _switched(torch.use_deterministic_algorithms, True, False)


def _default_dtype():
    return _switched(torch.set_default_dtype, torch.float64, torch.float32)


def _threads():
    count = torch.get_num_threads()
    return _switched(torch.set_num_threads, count + 1, count)


def _precision():
    return _switched(torch.set_float32_matmul_precision, "medium", "highest")


def _sdpa():
    return torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH])


def _fastpath():
    return _switched(torch.backends.mha.set_fastpath_enabled, False, True)


KEYED = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "deterministic": _deterministic,
    "default dtype": _default_dtype,
    "threads": _threads,
    "matmul precision": _precision,
    "attention backends": _sdpa,
    "fast path": _fastpath,
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
}


@pytest.mark.parametrize("state", KEYED.values(), ids=KEYED)
def test_numeric_state_is_part_of_the_key(store, state):
    def function(self, x):
        y = self.linear(x) + torch.ones(4) / 3
        return nn.functional.scaled_dot_product_attention(y, y, y).double()

    module, sharing = shared(store, function)
    x = torch.randn(2, 3, 4)
    # The explicit default differs from the implicit one in torch's state.
    torch.set_float32_matmul_precision("highest")
    module(x)
    before = sharing.computed, sharing.hits
    with state():
        expected = type(module).forward(module, x)
        first, second = module(x), module(x)
        assert torch.equal(first, expected) and torch.equal(second, expected)
        assert (sharing.computed, sharing.hits) == (before[0] + 1, before[1] + 1), dict(sharing.private)
    module(x)
    assert sharing.hits == before[1] + 2


class _Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


PRIVATE = {
    "flush denormal": (lambda: _switched(torch.set_flush_denormal, True, False), "denormal numbers"),
    "function mode": (_Function, "TorchFunctionMode"),
    "dispatch mode": (_Dispatch, "TorchDispatchMode"),
    "default device": (lambda: torch.device("meta"), "TorchFunctionMode"),
    "forward differentiation": (forward_ad.dual_level, "forward-mode"),
}


def _plus(self, x):
    return x + 1


@pytest.mark.parametrize("mode, reason", PRIVATE.values(), ids=PRIVATE)
def test_modes_make_a_call_private(store, mode, reason):
    module, sharing = shared(store, _plus)
    x = torch.ones(3)
    module(x)
    before = sharing.computed, sharing.hits
    with mode():
        assert torch.equal(module(x), x + 1)
    assert (sharing.computed, sharing.hits) == before
    assert any(reason in known for known in sharing.private), dict(sharing.private)
    with torch.device("cpu"):
        module(x)
    assert sharing.hits == before[1] + 1


def test_flushed_denormal_results_are_not_published(store):
    """Threads of torch keep flushing denormal numbers if flushing was on when they were created."""
    module, sharing = shared(store, lambda self, x: x * 0.5)

    def run(flush):
        torch.set_flush_denormal(flush)
        try:
            (torch.ones(1 << 20) * 2).sum()
        finally:
            torch.set_flush_denormal(False)
        with torch.no_grad():
            module(torch.full((1 << 18,), 1e-38))

    thread = threading.Thread(target=run, args=(True,))
    thread.start()
    thread.join()
    computed = sharing.computed
    result = module(torch.full((1 << 18,), 1e-38))
    assert bool(result.ne(0).all()), "a result without denormal numbers was published"
    assert computed + sharing.hits <= 1 and sharing.computed == 1


def test_function_transforms_run_the_module(store):
    module, sharing = shared(store, lambda self, x: x * 2)
    x = torch.ones(3, 4)
    assert torch.equal(torch.func.vmap(module)(x), x * 2)
    _, tangent = torch.func.jvp(module, (x,), (x,))
    assert torch.equal(tangent, x * 2)
    with torch.enable_grad():
        assert torch.equal(torch.func.grad(lambda y: module(y).sum())(x), torch.full((3, 4), 2.0))
        y = x.clone().requires_grad_()
        module(y).sum().backward()
        assert torch.equal(y.grad, torch.full((3, 4), 2.0))
    assert sharing.computed == sharing.hits == 0


def test_compiled_outer_module_does_not_share(store):
    module, sharing = shared(store, lambda self, x: self.linear(x) * 2)
    compiled = torch.compile(nn.Sequential(module), backend="eager")
    assert torch.equal(compiled(torch.ones(2, 4)), torch.full((2, 4), 2.0))
    assert sharing.computed == 0


def _with_attribute():
    x = torch.ones(3, 4)
    x.scale = 3
    return (x,)


def _with_gradient():
    x = torch.ones(3, 4, requires_grad=True)
    x.grad = torch.ones(3, 4)
    return (x.detach().requires_grad_(),)


def _overlapping():
    x = torch.ones(4, 4)
    return x[:3], x[1:]


INPUTS = {
    "attribute": (_with_attribute, "extra attributes"),
    "requires gradients": (_with_gradient, "requires gradients"),
    "overlapping": (_overlapping, "overlap in memory"),
    "parameter": (lambda: (nn.Parameter(torch.ones(3, 4), requires_grad=False),), "type Parameter"),
    "sparse": (lambda: (torch.eye(4).to_sparse(),), "layout torch.sparse_coo"),
}


@pytest.mark.parametrize("make, reason", INPUTS.values(), ids=INPUTS)
def test_inputs_without_a_key_make_a_call_private(store, make, reason):
    module, sharing = shared(store, lambda self, x, y=1: x * y)
    inputs = make()
    expected = type(module).forward(module, *inputs)
    assert torch.equal(module(*inputs).to_dense(), expected.to_dense())
    assert sharing.computed == 0 and any(reason in known for known in sharing.private), dict(sharing.private)


def test_graph_reads_only_its_inputs(store):
    """`as_strided` reads the storage by absolute offsets, also outside of a view."""
    module, sharing = shared(store, lambda self, x: x.as_strided((2,), (1,), 0) * 1)
    module(torch.tensor([7.0, 7.0]))
    assert sharing.computed == 1
    for first in (1.0, 3.0):
        view = torch.tensor([first, 4.0, 7.0, 7.0])[2:]
        assert torch.equal(module(view), torch.tensor([7.0, 7.0])), "equal inputs give equal outputs"


def test_outputs_do_not_alias_weights_or_inputs(store):
    module, _ = shared(store, lambda self, x: [self.linear.weight[0].detach(), x, x[0]])
    x = torch.ones(2, 4)
    for _ in range(2):
        weight, same, part = module(x)
        assert torch.equal(weight, torch.eye(4)[0]) and torch.equal(part, torch.ones(4))
        weight.zero_(), same.zero_()
    assert torch.equal(x, torch.ones(2, 4)), "an output shares no memory with the input"


def test_forked_child_computes_itself(store):
    module, _ = shared(store, lambda self, x: self.linear(x))
    x = torch.ones(1, 4)
    module(x)
    child = os.fork()
    if child == 0:
        right = torch.equal(module(x), x) and torch.equal(module(x), x)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_share_one_capture(store):
    module, sharing = shared(store, lambda self, x: self.linear(x))
    x = torch.ones(5, 4)
    results = []

    def run():
        with torch.no_grad():
            results.append(module(x))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(result, x) for result in results)
    assert len(sharing.spaces) <= 1 and sharing.computed <= 1


def test_environment_is_read_between_captures(store):
    """torch.export switches mkldnn off for the whole process."""
    module, sharing = shared(store, lambda self, x: self.linear(x))
    x = torch.ones(2, 4)
    space = sharing.capture(x)
    enabled = torch._C._get_mkldnn_enabled()
    thread = threading.Thread(target=torch.no_grad()(module), args=[x])
    with capturing():
        torch._C._set_mkldnn_enabled(not enabled)
        thread.start()
        thread.join(0.5)
        torch._C._set_mkldnn_enabled(enabled)
    thread.join()
    assert sharing.spaces == [space]
    module(x)
    assert (sharing.hits, sharing.computed) == (1, 1), dict(sharing.private)


def test_result_is_private_if_another_thread_captures_meanwhile(store):
    inner, _ = shared(store, lambda self, x: self.linear(x))
    x = torch.ones(2, 4)

    def forward(self, x):
        thread = threading.Thread(target=torch.no_grad()(inner.forward.capture), args=[x])
        thread.start()
        thread.join()
        return self.linear(x)

    module = Calls(forward).eval()
    sharing = share(module, store=store, key="outer")
    assert torch.equal(module(x), x)
    assert (sharing.computed, list(sharing.private)) == (0, ["another thread captured a module"])
    module(x)
    assert sharing.computed == 1, dict(sharing.private)
