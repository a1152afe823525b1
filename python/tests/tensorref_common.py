"""A small model for the tests of `cotensor.tensorref`, and its inputs."""

from __future__ import annotations

import torch

X = torch.linspace(-1, 1, 48).reshape(3, 16)


def mlp(layers=6, width=16, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])


def check(model, session_output, x=X):
    with torch.no_grad():
        torch.testing.assert_close(session_output.detach().cpu(), model(x), rtol=1e-6, atol=1e-6)
