"""Publishing and reading 256 MB: Cotensor, Ray, torch.multiprocessing, multiprocessing.shared_memory, safetensors."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import shared_memory
from typing import Any, Dict

import numpy
import safetensors.torch
import torch
from measure import interleaved, us

import cotensor

BYTES = 256 << 20


def run(socket: str, rounds: int, ray: Any) -> Dict[str, float]:
    array = torch.rand(BYTES // 4)
    as_numpy = array.numpy()
    store = cotensor.connect(socket)

    number = iter(range(1 << 30))

    def put() -> Any:
        name = f"put{next(number)}"
        made = store.put(name, array, keep=False)
        return made

    def memory_copy() -> Any:
        made = shared_memory.SharedMemory(create=True, size=BYTES)
        numpy.frombuffer(made.buf, numpy.float32)[:] = as_numpy
        made.close()
        made.unlink()

    target = torch.empty_like(array)

    puts = {
        "cotensor put": put,
        "cotensor put, memory prepared": put,
        "memcpy into warm memory": lambda: target.copy_(array),
        "torch.multiprocessing share_memory_": lambda: array.clone().share_memory_(),
        "shared_memory create + copy": memory_copy,
    }
    if ray is not None:
        puts["ray.put"] = lambda: ray.put(as_numpy)
    before = {"cotensor put, memory prepared": lambda: store.prefault(BYTES)}
    taken = interleaved(puts, max(3, rounds // 4), before=before)

    held = store.put("x", array)
    file = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    safetensors.torch.save_file({"x": array}, file)
    block = shared_memory.SharedMemory(create=True, size=BYTES)
    again = cotensor.connect(socket, client="first")

    def first_get() -> Any:
        # This connection holds no lease between calls: each call requests the tensor, receives its descriptor and maps it.
        return again.get("x").torch()

    gets = {
        "cotensor get -> torch, held": lambda: store.get("x").torch(),
        "cotensor first get -> torch": first_get,
        "safetensors load_file": lambda: safetensors.torch.load_file(file),
        "shared_memory attach -> torch": lambda: attach(block.name),
    }
    if ray is not None:
        reference = ray.put(as_numpy)
        gets["ray.get"] = lambda: ray.get(reference)
        gets["ray.get -> torch"] = lambda: torch.from_numpy(ray.get(reference))
    taken.update(interleaved(gets, max(3, rounds // 4), turn=10))
    del held
    block.close()
    block.unlink()
    for name, value in taken.items():
        print(f"  {name:42} {us(value)}")
    return taken


def attach(name: str) -> Any:
    block = shared_memory.SharedMemory(name=name)
    shown = torch.frombuffer(block.buf, dtype=torch.float32)
    keep.append((block, shown))
    if len(keep) > 8:
        old, tensor = keep.pop(0)
        del tensor
    return shown


keep: list = []
