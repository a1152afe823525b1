"""A program of its own that runs a model on the simulated device, and answers commands on its standard input.

Commands: ``run N`` runs the model N times and prints its state; ``state`` prints it; ``copy`` drops all copies, runs the
model and stops in the first copy, whose weight it prints; ``end`` leaves the block.
"""

from __future__ import annotations

import json
import sys
import threading

import torch

from cotensor.errors import CotensorError
from cotensor.tensorref import Middleware, offload, simulated_device


class Stop(Middleware):
    """Never returns from a copy to the device."""

    def after_move(self, move):
        if move.to_device:
            print(json.dumps({"copying": move.tensor}), flush=True)
            threading.Event().wait()


def main(memory: int, layers: int, width: int, options: str) -> None:
    device = simulated_device(memory=memory, name="shared")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    x = torch.ones(1, width)
    with torch.no_grad():
        expected = model(x)
    session = offload(model, "simulated", **json.loads(options))

    def state() -> None:
        counts = {**session.stats(), "allocated": device.memory.allocated_bytes, "peak": device.memory.peak_bytes}
        print(json.dumps(counts), flush=True)

    try:
        session.__enter__()
    except CotensorError as failure:
        print(json.dumps({"error": type(failure).__name__, "message": str(failure)}), flush=True)
        return
    state()
    for line in sys.stdin:
        command, *count = line.split()
        if command == "end":
            break
        if command == "copy":
            session.invalidate()
            session.use(Stop())
            count = ["1"]
        with torch.no_grad():
            for _ in range(int(count[0]) if count else 0):
                output = model(x)
                assert torch.equal(output.cpu(), expected)
                del output
        state()
    session.__exit__(None, None, None)
    print(json.dumps(session.stats()), flush=True)


main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
