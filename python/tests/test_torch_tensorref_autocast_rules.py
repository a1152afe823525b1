"""The dtypes of `torch.autocast` on the host, beside the rules for CUDA that tensors without elements show on any machine."""

from __future__ import annotations

import contextlib
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from cotensor.tensorref import simulated_device  # noqa: E402
from cotensor.tensorref.autocast import as_on  # noqa: E402

#: Kernels of CUDA that call other operations, which have rules: tensors without elements follow another function.
CALLING = frozenset("pinverse linalg_pinv linalg_pinv_hermitian ldexp mvlgamma_p_1 mvlgamma_p_3 mvlgamma_p_5".split())
OPERATORS = {op.formatted_name: op for op in op_db if op.formatted_name.replace("mvlgamma_mvlgamma", "mvlgamma") not in CALLING}
RECURRENT = ["lstm", "gru", "rnn_tanh", "rnn_relu"]


@contextlib.contextmanager
def enabled(device_type):
    """`torch.autocast`, which warns and does nothing without such a device."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


def dtypes_of(function, *args, **kwargs):
    """The dtypes of the results; None if the function does not run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*args, **kwargs)
    except Exception:
        return None
    return [value.dtype for value in tree_leaves(result) if isinstance(value, torch.Tensor)]


def on_cuda(values):
    """Tensors of CUDA without elements, inside of a `FakeTensorMode`."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cuda")

    return tree_map(move, values)


def compared(op, dtype):
    """The dtypes of a sample of an operator: on CUDA without rules, on CUDA by its rules, and on the host by them. The last is
    None where the host's kernel has other dtypes without rules, too, such as those of statistics, which differ by processor."""
    sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=False)))
    args, kwargs = (sample.input, *sample.args), sample.kwargs
    on_host = dtypes_of(op, *args, **kwargs)
    with enabled("cuda"):
        host = dtypes_of(as_on, "cuda", op, args, kwargs)
    if any([tensor.layout != torch.strided for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]):
        return None, None, None
    with FakeTensorMode():
        args, kwargs = on_cuda((args, kwargs))
        plain = dtypes_of(op, *args, **kwargs)
        with enabled("cuda"):
            return plain, dtypes_of(op, *args, **kwargs), host if on_host == plain else None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_each_operator_has_the_dtypes_of_cuda(dtype):
    counts, changed, different = 0, 0, {}
    for name, op in OPERATORS.items():
        if dtype not in op.dtypes:
            continue
        plain, expected, found = compared(op, dtype)
        if expected is None or found is None:
            continue
        counts += 1
        changed += plain != expected
        if found != expected:
            different[name] = expected, found
    assert different == {}
    assert counts > 400 and (changed > 20 or dtype == torch.float64), (counts, changed)


def names_of(key):
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name for name in found if name.startswith("aten::") and "cudnn" not in name}


def test_rules_are_for_the_operations_of_cuda():
    simulated_device()
    with enabled("cuda"):
        as_on("cuda", torch.ones, (2,), {})
    cuda, host = names_of("AutocastCUDA"), names_of("AutocastIPU")
    assert names_of("AutocastPrivateUse1") == cuda and len(cuda) > 90
    assert host > cuda and {name.partition(".")[0] for name in host - cuda} == {f"aten::{name}" for name in RECURRENT}


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_are_in_the_dtype_of_the_context(kind):
    model, x = kind(4, 4), torch.ones(3, 2, 4)
    with enabled("cuda"):
        output, _ = as_on("cuda", model, (x,), {})
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
        of_packed, _ = as_on("cuda", model, (packed,), {})
    assert output.dtype == of_packed.data.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all([parameter.grad.dtype == torch.float32 for parameter in model.parameters()])


def test_a_device_has_its_own_rules():
    """Those of MPS are fewer: the operations that it has no rule for consist of others."""
    assert "aten::linalg_vecdot" in names_of("AutocastCUDA") - names_of("AutocastMPS")
    x = torch.ones(2, 2)
    with enabled("mps"):
        assert as_on("mps", torch.matmul, (x, x), {}).dtype == torch.bfloat16
        assert as_on("mps", torch.einsum, ("ij,jk->ik", x, x), {}).dtype == torch.bfloat16
        assert as_on("mps", torch.linalg.vecdot, (x, x), {}).dtype == torch.float32
