"""A small model for the tests of `cotensor.tensorref`, its inputs, and programs with references."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

X = torch.linspace(-1, 1, 48).reshape(3, 16)


STRATEGIES = pytest.mark.parametrize("strategy", ["flow", "genoa", "lru", "pinned", "cpu"])


def mlp(layers=6, width=16, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])


def check(model, session_output, x=X):
    with torch.no_grad():
        torch.testing.assert_close(session_output.detach().cpu(), model(x), rtol=1e-6, atol=1e-6)


def calls(model, x):
    for _ in range(2):
        y = model(x)
        y.sin().sum().backward()
    return [y, *[parameter.grad for parameter in model.parameters()]]


def runs_as_on_host(make, program, strategy, half):
    """``program(model, inputs)`` returns the same offloaded as on the host; ``half``: with memory for half of the weights."""
    from cotensor.tensorref import offload

    expected = program(make(), X)
    model = make()
    sizes = [tensor.nbytes for tensor in model.parameters() if not torch.nn.parameter.is_lazy(tensor)]
    with offload(model, "simulated", strategy=strategy, memory=max(sum(sizes) // 2, 1) if half else 1 << 30):
        found = program(model, X.to("simulated"))
    assert all([tensor.is_cpu for tensor in [*model.parameters(), *model.buffers()]])
    leaves = torch.utils._pytree.tree_leaves
    for one, other in zip(leaves(found), leaves(expected)):
        if isinstance(other, str):
            assert one == other
            continue
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


#: Importing the module changes torch, so that a program of its own does it.
_START = """
import torchTensorRef
import torch
"""


def run_with_references(program):
    """Runs a program in a process of its own. Returns its output."""
    with tempfile.TemporaryDirectory() as folder:
        # A file, because TorchScript reads the source.
        path = Path(folder) / "program.py"
        path.write_text(_START + program)
        ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
