"""Host memory of processes that offload one published model: python python/benches/offload_processes.py

Each process attaches a model of 2 GiB from the store and runs it on the simulated device with memory for a quarter of it. Counted
is the proportional memory of the processes, without that of as many processes that import torch and have no model,
and without the memory of the simulated devices, which is on the host. Prints MiB, and two processes over one.
"""

from __future__ import annotations

from typing import List

from measure import Child, daemon, pss

LAYERS, WIDTH = 32, 4096
MIB = 1 << 20

#: Publishes the model, or attaches it and runs it, or does neither.
WORKER = f"""
import sys, torch
import cotensor, cotensor.torch, cotensor.tensorref
role, socket = sys.argv[1:]
torch.set_num_threads(1)
device = cotensor.tensorref.simulated_device()
def model():
    return torch.nn.Sequential(*[torch.nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})])
x = torch.ones(1, {WIDTH}).to("simulated")
if role == "publish":
    with torch.no_grad():
        cotensor.torch.publish(model(), "model", cotensor.connect(socket))
elif role == "offload":
    with torch.device("meta"):
        net = model()
    cotensor.torch.attach(net, "model", cotensor.connect(socket))
    session = cotensor.tensorref.offload(net, "simulated", memory="{LAYERS * WIDTH * WIDTH // MIB}MiB")
    session.__enter__()
    with torch.no_grad():
        for _ in range(6):
            net(x)
else:
    torch.nn.Linear(8, 8).to("simulated")(torch.ones(1, 8).to("simulated"))
print(device.memory.allocated_bytes, flush=True)
sys.stdin.read()
"""


def used(role: str, count: int, socket: str) -> int:
    """The memory of processes in one role, without their simulated devices, in bytes."""
    workers: List[Child] = [Child(WORKER, role, socket) for _ in range(count)]
    devices = sum(int(worker.line()) for worker in workers)
    total = sum(pss(worker.process.pid) for worker in workers)
    for worker in workers:
        worker.end()
    return total - devices


def main() -> None:
    with daemon() as socket:
        publisher = Child(WORKER, "publish", socket)
        publisher.line()
        publisher.end()
        bytes_of = {}
        for count in (1, 2):
            plain = used("import", count, socket)
            bytes_of[count] = used("offload", count, socket) - plain
            print(f"{count} processes: {bytes_of[count] / MIB:,.0f} MiB beside {plain / MIB:,.0f} MiB without a model")
        print(f"two over one: {bytes_of[2] / bytes_of[1]:.3f} (wanted: at most 1.05)")


if __name__ == "__main__":
    main()
