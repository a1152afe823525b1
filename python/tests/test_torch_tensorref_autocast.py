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
}


@pytest.mark.parametrize(("strategy", "room"), [("flow", "1MiB"), ("genoa", "1MiB"), ("flow", 1), ("genoa", 1), ("cpu", "1MiB")])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_dtypes_do_not_depend_on_the_budget(name, strategy, room):
    model = mlp(1)
    plain = mlp(1).to("simulated")
    with torch.autocast("simulated", torch.bfloat16):
        expected = OPERATIONS[name](X.to("simulated"), plain[0].weight, plain[0].bias)
    with offload(model, "simulated", strategy=strategy, memory=room), torch.autocast("simulated", torch.bfloat16):
        found = OPERATIONS[name](X.to("simulated"), model[0].weight, model[0].bias)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.detach().cpu(), expected.detach().cpu(), rtol=2e-2, atol=2e-2)
