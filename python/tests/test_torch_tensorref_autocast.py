"""`torch.autocast` for the device, where operations run on the device and on the host."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from tensorref_common import X, mlp  # noqa: E402

from cotensor.tensorref import offload  # noqa: E402

pytestmark = pytest.mark.usefixtures("memory")

OPERATIONS = {
    "linear": lambda x, w, b: F.linear(x, w, b),
    "matmul": lambda x, w, b: x @ w,
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
    "layer_norm": lambda x, w, b: F.layer_norm(x.bfloat16(), (16,), b, b),
    "softmax": lambda x, w, b: F.softmax(w.bfloat16() + x[:1], -1),
    "exp": lambda x, w, b: torch.exp(b.bfloat16()),
    "sum": lambda x, w, b: w.bfloat16().sum(),
    "mv": lambda x, w, b: torch.mv(w, b),
    "prelu of float16": lambda x, w, b: F.prelu(x.half(), b.half()),
    "prelu": lambda x, w, b: F.prelu(x, b),
    "addr": lambda x, w, b: torch.addr(w, b, b),
    "multi_dot": lambda x, w, b: torch.linalg.multi_dot([x, w, w]),
    "conv_transpose1d": lambda x, w, b: F.conv_transpose1d(x[None], w[:3, None]),
    "conv_transpose2d": lambda x, w, b: F.conv_transpose2d(x[None, :, None], w[:3, None, None]),
    "add": lambda x, w, b: x + b,
    "gelu": lambda x, w, b: F.gelu(b),
    "loss": lambda x, w, b: F.mse_loss((x @ w), x * b),
    # Functions that consist of others, of which PyTorch has rules.
    "division of a number": lambda x, w, b: 1 / w,
    "normalize": lambda x, w, b: F.normalize(w, dim=-1),
    "trace": lambda x, w, b: torch.trace(w),
    # Kernels that call other operations.
    "mvlgamma": lambda x, w, b: torch.mvlgamma(w, 1),
    "pinv": lambda x, w, b: torch.linalg.pinv(w),
    "ldexp": lambda x, w, b: torch.ldexp(w, x[:1].bfloat16()),
    # The CPU has no kernel for it.
    "avg_pool3d": lambda x, w, b: F.avg_pool3d(w.reshape(1, 4, 4, 4, 4), 2),
    "rms_norm": lambda x, w, b: F.rms_norm(w, (16,), b),
    "attention": lambda x, w, b: F.scaled_dot_product_attention(x[None], w[None], w[None]),
    "attention of heads": lambda x, w, b: F.multi_head_attention_forward(
        x[:, None], x[:, None], x[:, None], 16, 4, w.repeat(3, 1), b.repeat(3), None, None, False, 0.0, w, b
    )[0],
    "cosine_similarity": lambda x, w, b: F.cosine_similarity(w, x[:1]),
    "bilinear": lambda x, w, b: F.bilinear(x.bfloat16(), x, w[None], b[:1]),
    "var": lambda x, w, b: w.var(0),
    "sum with a dtype": lambda x, w, b: w.sum(0, dtype=torch.bfloat16),
    "softmax of numbers": lambda x, w, b: F.softmax(w, -1, dtype=torch.float64),
    "inner autocast": lambda x, w, b: cast_off(x, w),
}


def cast_off(x, w):
    with torch.autocast("simulated", enabled=False):
        return x @ w


def outcome(function, *args):
    """The result, or the text of the error."""
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


ROOMS = [("flow", "1MiB"), ("genoa", "1MiB"), ("flow", 1), ("genoa", 1), ("cpu", "1MiB")]
PLACES = pytest.mark.parametrize(("strategy", "room"), ROOMS)


@PLACES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_dtypes_do_not_depend_on_the_budget(name, dtype, strategy, room):
    model = mlp(1).to(dtype)
    plain = mlp(1).to(dtype).to("simulated")
    shown = set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            with torch.autocast("simulated", torch.bfloat16):
                expected = outcome(OPERATIONS[name], X.to("simulated"), plain[0].weight, plain[0].bias)
            with offload(model, "simulated", strategy=strategy, memory=room), torch.autocast("simulated", torch.bfloat16):
                found = outcome(OPERATIONS[name], X.to("simulated"), model[0].weight, model[0].bias)
            if isinstance(expected, str):
                assert found == expected
                continue
            assert (found.dtype, found.is_inference()) == (expected.dtype, inference)
            torch.testing.assert_close(found.detach().cpu(), expected.detach().cpu(), rtol=2e-2, atol=2e-2)
            shown.add(expected.dtype)
    assert len(shown) < 2, "the rules are the same in inference mode"


@PLACES
def test_dtypes_of_the_cpu_are_not_those_of_the_device(strategy, room):
    """``autocast("cpu")`` changes no operation of a device, so that it must not change one that runs on the host instead."""
    model = mlp(1)
    with offload(model, "simulated", strategy=strategy, memory=room), torch.autocast("cpu", torch.bfloat16):
        assert (X.to("simulated") @ model[0].weight).dtype == torch.float32


@PLACES
def test_dtypes_in_a_transform_do_not_depend_on_the_budget(strategy, room):
    model, plain = mlp(1), mlp(1).to("simulated")

    def inverse(weight, x):
        return (1 / (x @ weight)).sum()

    with torch.autocast("simulated", torch.bfloat16):
        expected = torch.func.vmap(inverse, (None, 0))(plain[0].weight, X.to("simulated"))
    with offload(model, "simulated", strategy=strategy, memory=room), torch.autocast("simulated", torch.bfloat16):
        found = torch.func.vmap(inverse, (None, 0))(model[0].weight, X.to("simulated"))
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found.detach().cpu(), expected.detach().cpu(), rtol=2e-2, atol=2e-2)


def test_refused_operation_is_refused_on_the_host():
    model, target = mlp(1), torch.ones(3, 16)
    for room in ("1MiB", 1):
        with offload(model, "simulated", memory=room), torch.autocast("simulated", torch.bfloat16):
            with pytest.raises(RuntimeError, match="unsafe to autocast"):
                F.binary_cross_entropy(torch.sigmoid(model(X.to("simulated"))), target.to("simulated"))
