"""Putting a model into shared memory, and showing one that is there."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import torch

from ..._native import Store, Tensor, TensorBuilder
from ...errors import ConflictError, CorruptError
from ..modes import plainly
from ..progress import STEP_BYTES, Progress, reporting
from .collect import DTYPES, Part
from .manifest import ITEM_BYTES, Manifest, encode_manifest, span

#: What every torch takes over as it is; the others, and what has more dimensions, by way of bytes.
_BY_DLPACK = {"float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"}
_DIRECT_MAX = 8


@contextmanager
def drafting(
    store: Store, name: str, manifest: Manifest, keep: bool, producer: Optional[str]
) -> Iterator[Tuple[TensorBuilder, int]]:
    """A draft with the header in it, and where its data begin; it is given up if the block fails."""
    header = encode_manifest(manifest)
    total = len(header) + manifest.data_bytes
    draft = store.empty(name, (total,), "uint8", kind="weight", keep=keep, producer=producer)
    try:
        ctypes.memmove(draft.data_ptr, header, len(header))
        yield draft, len(header)
    except BaseException:
        try:
            draft.discard()
        except ConflictError:
            pass  # publishing it failed
        raise


def write(
    store: Store,
    name: str,
    manifest: Manifest,
    sources: List[List[Part]],
    keep: bool,
    producer: Optional[str],
    progress: Progress,
) -> Tensor:
    """Publishes tensors under one name: each is copied once, straight to where it stays."""
    with plainly(), drafting(store, name, manifest, keep, producer) as (draft, data):
        target = draft.torch()
        total = sum(part.size_bytes for parts in sources for part in parts)
        with reporting(progress, f"publishing {name}", total) as tell:
            for (offset, _), parts in zip(manifest.storages, sources):
                for part in parts:
                    _copy(target, data + offset + part.offset_bytes, part, tell)
        draft.record_copy(data + total)
        del target
        return draft.publish()


def _copy(target: torch.Tensor, at: int, part: Part, tell: Callable[[int], None]) -> None:
    source = part.tensor
    if part.scattered:
        length = span(source.shape, source.stride()) * source.element_size()
        place = target[at : at + length].view(source.dtype)
        place.as_strided(source.shape, source.stride(), place.storage_offset()).copy_(source)
        tell(part.size_bytes)
        return
    for start in range(0, part.size_bytes, STEP_BYTES):
        stop = min(start + STEP_BYTES, part.size_bytes)
        target[at + start : at + stop].copy_(source[start:stop])
        tell(stop - start)


def views(whole: Tensor, manifest: Manifest, data: int) -> List[torch.Tensor]:
    """A tensor for each entry, in shared memory. Each keeps the lease; those of one storage have one in torch, too."""
    used = [0] * len(manifest.storages)
    for entry in manifest.tensors:
        used[entry.storage] += 1
    storages: Dict[int, torch.UntypedStorage] = {}

    def storage_of(number: int) -> torch.UntypedStorage:
        if number not in storages:
            offset, length = manifest.storages[number]
            storages[number] = whole[data + offset : data + offset + length].torch().untyped_storage()
        return storages[number]

    with plainly():
        whole.torch()  # one private mapping, which the windows below are of
        shown: List[torch.Tensor] = []
        for entry in manifest.tensors:
            if entry.dtype not in DTYPES:
                raise CorruptError(f"{entry.name}: this torch has no {entry.dtype}", field=entry.name)
            start, length = manifest.storages[entry.storage]
            if not length:
                if 0 not in entry.shape:
                    raise CorruptError(f"{entry.name}: it lies in a storage of no bytes", field=entry.name)
                shown.append(torch.empty_strided(entry.shape, entry.stride, dtype=DTYPES[entry.dtype]))
            elif used[entry.storage] == 1 and entry.dtype in _BY_DLPACK and 0 < len(entry.shape) <= _DIRECT_MAX:
                start += data + entry.offset * ITEM_BYTES[entry.dtype]
                shown.append(whole.view(start, entry.dtype, entry.shape, entry.stride).torch())
            else:
                tensor = torch.empty(0, dtype=DTYPES[entry.dtype])
                shown.append(tensor.set_(storage_of(entry.storage), entry.offset, entry.shape, entry.stride))
    return shown
