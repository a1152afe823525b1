"""Putting a model into shared memory, and showing one that is there."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional, Tuple

import torch

from .._native import Draft, Store, Tensor
from ..errors import ConflictError, CorruptError
from ._collect import DTYPES, Source
from ._format import Manifest, encode, parse, prefix_length, text_length
from ._modes import plainly
from ._progress import STEP_BYTES, Progress, reporting


@contextmanager
def drafting(
    store: Store, name: str, manifest: Manifest, keep: bool, producer: Optional[str]
) -> Iterator[Tuple[Draft, int]]:
    """A draft with the header in it, and where its data begin; it is given up if the block fails."""
    header = encode(manifest)
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
    sources: List[Source],
    keep: bool,
    producer: Optional[str],
    progress: Progress,
) -> Tensor:
    """Publishes tensors under one name: each is copied once, straight to where it stays."""
    with plainly(), drafting(store, name, manifest, keep, producer) as (draft, data):
        target = draft.torch()
        with reporting(progress, f"publishing {name}", manifest.data_bytes) as tell:
            for (offset, _), source in zip(manifest.storages, sources):
                _copy(target, data + offset + source.pad_bytes, source, tell)
        getattr(draft, "record_copy", lambda n: 0)(draft.nbytes)
        del target
        return draft.publish()


def _copy(target: torch.Tensor, at: int, source: Source, tell: Callable[[int], None]) -> None:
    size = source.size_bytes - source.pad_bytes
    if not size:
        return
    part = target[at : at + size]
    if source.scattered:
        part.view(source.tensor.dtype).view(source.tensor.shape).copy_(source.tensor)
        tell(size)
        return
    for start in range(0, size, STEP_BYTES):
        stop = min(start + STEP_BYTES, size)
        part[start:stop].copy_(source.tensor[start:stop])
        tell(stop - start)


def read(whole: Tensor) -> Tuple[Manifest, int]:
    """The manifest of a published model, checked, and where its data begin."""
    name = whole.name
    if whole.dtype != "uint8" or whole.ndim != 1:
        raise CorruptError(f"{name}: this is a tensor, {whole.dtype}{list(whole.shape)}, and no model", field=name)
    start, total = whole.data_ptr, whole.nbytes
    prefix = ctypes.string_at(start, min(prefix_length(), total))
    length = text_length(name, prefix, total)
    # Copied before it is checked, so that nothing can change in between.
    text = ctypes.string_at(start + prefix_length(), length)
    return parse(name, text, total)


def views(whole: Tensor, manifest: Manifest, data: int) -> List[torch.Tensor]:
    """A tensor for each entry, in shared memory. Each keeps the lease; those of one storage have one in torch, too."""
    with plainly():
        whole.torch()  # one private mapping, which the windows below are of
        shown: List[torch.Tensor] = []
        storages = []
        for offset, length in manifest.storages:
            start = data + offset
            storages.append(whole[start : start + length].torch().untyped_storage() if length else None)
        for entry in manifest.tensors:
            if entry.dtype not in DTYPES:
                raise CorruptError(f"{entry.name}: this torch has no {entry.dtype}", field=entry.name)
            storage = storages[entry.storage]
            tensor = torch.empty(0 if storage is not None else entry.shape, dtype=DTYPES[entry.dtype])
            if storage is not None:
                tensor.set_(storage, entry.offset, entry.shape, entry.stride)
            elif 0 not in entry.shape:
                raise CorruptError(f"{entry.name}: it lies in a storage of no bytes", field=entry.name)
            shown.append(tensor)
    return shown
