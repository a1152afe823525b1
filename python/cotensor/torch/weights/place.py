"""Where the tensors of a module are: all on the host, or all on one GPU."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import AbstractSet, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch

from ..._native import Tensor, TensorBuilder, cuda_device
from ...errors import CorruptError, UnsupportedError
from ..modes import default_modes
from ..progress import STEP_BYTES
from .manifest import ITEM_BYTES, Manifest, span

#: The most parts in which a tensor with gaps is copied on a GPU.
RUNS_MAX = 65_536


class Place(NamedTuple):
    """The memory that all tensors of a module have."""

    #: The device in a store: ``cpu``, or ``cuda:N`` with its number on the machine.
    name: str
    #: The device in PyTorch, with its number in this process.
    device: torch.device

    @property
    def is_host(self) -> bool:
        return self.name == "cpu"


HOST = Place("cpu", torch.device("cpu"))


def place_of_tensor(name: str, tensor: torch.Tensor) -> Place:
    """Where a tensor is. Raises :class:`UnsupportedError` for a device whose memory cannot be shared."""
    device = tensor.device
    if device.type == "cpu":
        return HOST
    if device.type != "cuda":
        message = f"{name}: the tensor is on {device}, and shared memory is on the host or on a CUDA device: use cpu()"
        raise UnsupportedError(message, field=name)
    try:
        return Place(cuda_device(device.index or 0), device)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: the tensor is on {device}: {error}", field=name) from None


def place_of_model(whole: Tensor) -> Place:
    """Where a published model is."""
    if whole.device == "cpu":
        return HOST
    return Place(whole.device, torch.device("cuda", whole.__dlpack_device__()[1]))


@dataclass
class Run:
    """Bytes side by side on a GPU, to copy into a storage."""

    #: The offset in the storage.
    offset_bytes: int
    size_bytes: int
    address: int
    #: The owner of the memory.
    keep: torch.Tensor


def runs(name: str, tensor: torch.Tensor, start: int, is_apart: bool) -> List[Run]:
    """The bytes of a tensor on a GPU that begins at the byte ``start`` of a storage. With ``is_apart``, no two elements share
    memory, and gaps between them are left out.

    Raises :class:`UnsupportedError` for a tensor of too many parts.
    """
    item, address = tensor.element_size(), tensor.data_ptr()
    # An expanded dimension is copied once.
    steps = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape) if step and size > 1)
    length = 1
    while is_apart and steps and steps[0][0] == length:
        length *= steps.pop(0)[1]
    if not is_apart:
        length, steps = span([size for _, size in steps], [step for step, _ in steps]), []
    count = 1
    for _, size in steps:
        count *= size
    if count > RUNS_MAX:
        message = f"{name}: its elements lie in {count} parts, of which at most {RUNS_MAX} are copied on a GPU: use contiguous()"
        raise UnsupportedError(message, field=name)
    found = []
    for places in itertools.product(*(range(0, step * size, step) for step, size in steps)):
        offset = sum(places) * item
        found.append(Run(start + offset, length * item, address + offset, tensor))
    return found


def copy_on_device(
    builder: TensorBuilder, data: int, manifest: Manifest, sources: List[Sequence[Run]]
) -> Iterator[int]:
    """Copies runs to the storages from the byte ``data`` on, after the work of this process on the GPU. Yields numbers of bytes
    that are copied.
    """
    batch: List[Tuple[int, int, int]] = []
    size_bytes = 0
    for (offset, _), parts in zip(manifest.storages, sources):
        for part in parts:
            batch.append((data + offset + part.offset_bytes, part.address, part.size_bytes))
            size_bytes += part.size_bytes
            if size_bytes >= STEP_BYTES:
                builder._copy_parts(batch)
                yield size_bytes
                batch, size_bytes = [], 0
    builder._copy_parts(batch)
    yield size_bytes


def as_torch(tensor: Tensor) -> torch.Tensor:
    """A tensor of PyTorch on the memory of a GPU. Tests without a GPU replace this function."""
    shown: torch.Tensor = tensor.torch()
    return shown


def views_on_device(whole: Tensor, manifest: Manifest, data: int, private: AbstractSet[int]) -> List[torch.Tensor]:
    """A tensor on the GPU for each entry. Each keeps the lease. Those of the storages ``private`` are in copies, which this
    process can write."""
    copies: Dict[int, torch.Tensor] = {}
    shown = []
    for entry in manifest.tensors:
        offset, length = manifest.storages[entry.storage]
        start = data
        if 0 not in entry.shape:
            start += offset + entry.offset * ITEM_BYTES[entry.dtype]
        if not hasattr(torch, entry.dtype):
            raise CorruptError(f"{entry.name}: this torch version has no {entry.dtype}", field=entry.name)
        if entry.storage in private and 0 not in entry.shape:
            with default_modes():
                if entry.storage not in copies:
                    copies[entry.storage] = as_torch(whole.view(data + offset, "uint8", (length,))).clone()
                whole_items = copies[entry.storage].narrow(0, 0, length - length % ITEM_BYTES[entry.dtype])
                items = whole_items.view(getattr(torch, entry.dtype))
                # Without its base, as a tensor of its own.
                shown.append(items.as_strided(entry.shape, entry.stride, entry.offset).data)
        else:
            shown.append(as_torch(whole.view(start, entry.dtype, entry.shape, entry.stride)))
    return shown
