"""What processes do on a real GPU in the tests of modules: `python torch_gpu_programs.py NAME SOCKET`."""

from __future__ import annotations

import torch
from device_programs_common import main, step

import cotensor
import cotensor.torch as shared
from cotensor.tensorref import offload

WIDTH = 1024


def module() -> torch.nn.Sequential:
    """The same in all processes. Its weights have 4 MiB each."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])


def publishes(store: cotensor.Store) -> None:
    """Publishes, and stays."""
    shared.publish(module().cuda(), "m", store)
    step("published")


def attaches(store: cotensor.Store) -> None:
    """Computes with the memory of the other process, and stays."""
    expected, x = module().cuda(), torch.linspace(-1, 1, WIDTH, device="cuda")
    with shared.on_meta():
        attached = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
    shared.attach(attached, "m", store)
    with torch.no_grad():
        assert torch.equal(attached(x), expected(x))
        step("attached")
        assert torch.equal(attached(x), expected(x))


def publishes_on_the_host(store: cotensor.Store) -> None:
    shared.publish(module(), "net", store, attach=False)


def offloads(store: cotensor.Store) -> None:
    """Offloads the published model, shares its copies, and stays."""
    expected, model, x = module().cuda(), module(), torch.linspace(-1, 1, WIDTH)
    shared.attach(model, "net", store)
    weights_bytes = 4 * 4 * WIDTH * WIDTH
    with torch.no_grad(), offload(model, "cuda", strategy="lru", shared_copies=True, broker=False) as session:
        torch.testing.assert_close(model(x).cuda(), expected(x.cuda()), rtol=1e-4, atol=1e-5)
        state = session.stats()
        assert state["shared_bytes"] == weights_bytes, state
        step("copied all weights" if state["copied_bytes"] >= weights_bytes else "copied no weight")


if __name__ == "__main__":
    main(globals())
