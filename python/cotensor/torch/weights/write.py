"""Writes a model into shared memory, and makes tensors of a published one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import AbstractSet, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, cast

import torch

from ..._native import Store, Tensor, TensorBuilder
from ...errors import ConflictError, CorruptError
from ..modes import default_modes
from ..progress import STEP_BYTES, Progress, reporting
from .collect import DTYPES, Gathered, Part
from .manifest import ITEM_BYTES, Manifest, encode_manifest, span
from .place import HOST, Place, Run, copy_on_device, place_of_model, views_on_device

#: The dtypes that every torch imports by DLPack. Other dtypes, and tensors of more dimensions, are views of bytes.
_BY_DLPACK = {"float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"}
_DIRECT_MAX = 8


@contextmanager
def building(
    store: Store, name: str, manifest: Manifest, keep: bool, producer: Optional[str], place: Place = HOST
) -> Iterator[Tuple[TensorBuilder, int]]:
    """An unpublished model with its header, and the offset of its data in bytes. It is discarded if the block fails."""
    header = encode_manifest(manifest)
    total = len(header) + manifest.data_bytes
    builder = store.empty(name, (total,), "uint8", kind="weight", keep=keep, producer=producer, device=place.name)
    try:
        builder._write_bytes(0, header)
        yield builder, len(header)
    except BaseException:
        try:
            builder.discard()
        except ConflictError:
            pass  # an attempt to publish it failed
        raise


def write(
    store: Store,
    name: str,
    gathered: Gathered,
    keep: bool,
    producer: Optional[str],
    progress: Progress,
) -> Tensor:
    """Publishes tensors under one name, with one copy of each, where they are."""
    manifest, sources, place = gathered
    with default_modes(), building(store, name, manifest, keep, producer, place) as (builder, data):
        total = sum(part.size_bytes for parts in sources for part in parts)
        with reporting(progress, f"publishing {name}", total) as advance:
            if place.is_host:
                _copy_on_host(builder, data, manifest, cast("List[Sequence[Part]]", sources), advance)
            else:
                for copied in copy_on_device(builder, data, manifest, cast("List[Sequence[Run]]", sources)):
                    advance(copied)
        builder.record_copy(data + total)
        return builder.publish()


def _copy_on_host(
    builder: TensorBuilder,
    data: int,
    manifest: Manifest,
    sources: List[Sequence[Part]],
    advance: Callable[[int], None],
) -> None:
    target = builder.torch()
    for (offset, _), parts in zip(manifest.storages, sources):
        for part in parts:
            _copy(target, data + offset + part.offset_bytes, part, advance)


def _copy(target: torch.Tensor, at: int, part: Part, advance: Callable[[int], None]) -> None:
    source = part.tensor
    if part.scattered:
        length = span(source.shape, source.stride()) * source.element_size()
        place = target[at : at + length].view(source.dtype)
        place.as_strided(source.shape, source.stride(), place.storage_offset()).copy_(source)
        advance(part.size_bytes)
        return
    for start in range(0, part.size_bytes, STEP_BYTES):
        stop = min(start + STEP_BYTES, part.size_bytes)
        target[at + start : at + stop].copy_(source[start:stop])
        advance(stop - start)


def views(
    whole: Tensor,
    manifest: Manifest,
    data: int,
    private: AbstractSet[int] = frozenset(),
) -> List[torch.Tensor]:
    """A tensor in shared memory for each entry. Each keeps the lease. On the host, those of one storage share a torch storage.

    On the host, writes are private to this process. On a device, only those of the storages ``private``, which are copies, can be
    written.
    """
    if not place_of_model(whole).is_host:
        return views_on_device(whole, manifest, data, private)
    used = [0] * len(manifest.storages)
    for entry in manifest.tensors:
        used[entry.storage] += 1
    storages: Dict[int, torch.UntypedStorage] = {}

    def storage_of(number: int) -> torch.UntypedStorage:
        if number not in storages:
            offset, length = manifest.storages[number]
            storages[number] = whole[data + offset : data + offset + length].torch().untyped_storage()
        return storages[number]

    with default_modes():
        whole.torch()  # one private mapping for all views below
        shown: List[torch.Tensor] = []
        for entry in manifest.tensors:
            if entry.dtype not in DTYPES:
                raise CorruptError(f"{entry.name}: this torch version has no {entry.dtype}", field=entry.name)
            start, length = manifest.storages[entry.storage]
            if not length:
                if 0 not in entry.shape:
                    raise CorruptError(f"{entry.name}: its storage is empty", field=entry.name)
                shown.append(torch.empty_strided(entry.shape, entry.stride, dtype=DTYPES[entry.dtype]))
            elif used[entry.storage] == 1 and entry.dtype in _BY_DLPACK and 0 < len(entry.shape) <= _DIRECT_MAX:
                start += data + entry.offset * ITEM_BYTES[entry.dtype]
                shown.append(whole.view(start, entry.dtype, entry.shape, entry.stride).torch())
            else:
                tensor = torch.empty(0, dtype=DTYPES[entry.dtype])
                shown.append(tensor.set_(storage_of(entry.storage), entry.offset, entry.shape, entry.stride))
    return shown
