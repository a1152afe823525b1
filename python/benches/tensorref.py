"""What interception costs an operation: python python/benches/tensorref.py

Times what a session adds to a function whose weights are on the device already, to one without weights, and to one that
only shows a tensor. The functions themselves do nothing, so that the device does not matter. PyTorch takes a mode off its stack
while the mode handles a function; so does this bench, and adds what PyTorch itself takes for that. Prints microseconds per
call, the least of many rounds.
"""

from __future__ import annotations

import timeit
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from cotensor.tensorref import offload, simulated_device

CALLS, ROUNDS = 1000, 60


def micros(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


class Nothing(TorchFunctionMode):
    """The least that a mode of PyTorch costs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def main() -> None:
    simulated_device()
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 16)
    weight, bias = model.weight, model.bias
    with torch.no_grad():
        x = torch.ones(1, 16).to("simulated")

        def linear(*arguments: Any) -> Any:
            return x

        arguments = (x, weight, bias)
        direct = micros(lambda: linear(*arguments))
        shape = micros(lambda: weight.shape)
        with Nothing():
            dispatch = micros(lambda: weight.shape) - shape
        print(f"a mode that does nothing adds {dispatch:.2f} µs")
        for strategy in ("flow", "lru"):
            with offload(model, "simulated", strategy=strategy) as session:
                for _ in range(100):
                    model(x)
                copies = session.stats()["copies"]
                with _pop_mode_temporarily() as mode:  # type: ignore[no-untyped-call]
                    resident = micros(lambda: mode.__torch_function__(linear, (), arguments)) - direct
                    without = micros(lambda: mode.__torch_function__(linear, (), (x, x))) - direct
                shown = micros(lambda: weight.shape) - shape
                assert session.stats()["copies"] == copies, "the weights did not stay"
            print(
                f"{strategy}: with two weights {dispatch + resident:.2f} µs, without weights {dispatch + without:.2f} µs, "
                f"shape {shown:.2f} µs"
            )


if __name__ == "__main__":
    main()
