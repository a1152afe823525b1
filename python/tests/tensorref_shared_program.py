"""A program of its own that offloads the published model "net" to the simulated device, and answers commands on its standard
input.

Commands: ``run N`` runs the model N times, compares each result with that of the host, and prints its state; ``write`` writes a
weight in place first; ``copy`` drops all copies, runs the model and stops after the first move, whose weight it prints; ``end``
leaves the block.
"""

from __future__ import annotations

import json
import sys
import threading

import torch

import cotensor.torch
from cotensor.tensorref import Middleware, offload, simulated_device


class Stop(Middleware):
    """Never returns from a copy to the device."""

    def after_move(self, move):
        if move.to_device:
            print(json.dumps({"copying": move.tensor}), flush=True)
            threading.Event().wait()


def main(layers: int, width: int, device_options: str, options: str) -> None:
    device = simulated_device(name="shared", **json.loads(device_options))
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    cotensor.torch.attach(model, "net")
    x = torch.linspace(-1, 1, width).reshape(1, width)

    written = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    written.load_state_dict(model.state_dict())
    with torch.no_grad():
        written[0].weight.mul_(2)
        expected, expected_after = model(x), written(x)
    session = offload(model, "simulated", **json.loads(options))

    def state() -> None:
        counts = {**session.stats(), "allocated": device.memory.allocated_bytes, "copied_in": device.memory.copied_in_bytes}
        print(json.dumps(counts), flush=True)

    with session:
        state()
        for line in sys.stdin:
            command, *count = line.split()
            if command == "end":
                break
            if command == "copy":
                session.invalidate()
                session.use(Stop())
            with torch.no_grad():
                if command == "write":
                    model[0].weight.mul_(2)
                    expected = expected_after
                for _ in range(int(count[0]) if count else 1):
                    output = model(x)
                    assert torch.equal(output.cpu(), expected)
                    del output
            state()
    state()


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
