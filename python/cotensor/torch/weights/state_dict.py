"""State dicts and safetensors files."""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import torch

from ..._native import Store
from ..modes import plainly
from ..progress import STEP_BYTES, Progress, reporting
from ..store import leased, resolve
from . import safetensors, write
from .collect import contiguous_stride, gather, of_mapping
from .manifest import TEMPORARY, TENSOR, Manifest, TensorEntry, aligned, read_manifest
from .models import Attachment

logger = logging.getLogger("cotensor.torch")


def publish_state_dict(
    mapping: Mapping[str, Any],
    name: str,
    store: Optional[Store] = None,
    *,
    keep: bool = True,
    producer: Optional[str] = None,
    progress: Progress = None,
) -> Attachment:
    """Publishes a state dict under ``name``: one copy. Tensors that are the same memory are stored once.

    :func:`attach` takes it as it takes a published module, except that ``requires_grad`` stays the module's own, and so
    do buffers that no state dict has. Options and exceptions are those of :func:`publish`.
    """
    store = resolve(store)
    with plainly():
        manifest, sources = gather(of_mapping(mapping), "")
    whole = write.write(store, name, manifest, sources, keep, producer, progress)
    return Attachment(whole.name, whole.version, whole.id, whole.nbytes)


def publish_file(
    path: Union[str, "os.PathLike[str]"],
    name: str,
    store: Optional[Store] = None,
    *,
    keep: bool = True,
    producer: Optional[str] = None,
    progress: Progress = None,
) -> Attachment:
    """Publishes a safetensors file, or the folder of a checkpoint with ``model.safetensors`` or its shards and their
    index.

    It is read once, straight into shared memory. Otherwise as :func:`publish_state_dict`.

    Raises :class:`CorruptError` for a file that is damaged, :class:`NotFoundError` for none, :class:`UnsupportedError`
    naming a tensor of a dtype that cannot be shared; nothing is published then.
    """
    store = resolve(store)
    found = safetensors.find(safetensors.check_path(path))
    storages: List[Tuple[int, int]] = []
    entries: List[TensorEntry] = []
    end = 0
    for index, tensor in enumerate(found):
        offset = aligned(end)
        end = offset + tensor.size_bytes
        storages.append((offset, tensor.size_bytes))
        stride = contiguous_stride(tensor.shape)
        entries.append(TensorEntry([(tensor.name, TENSOR)], tensor.dtype, tensor.shape, stride, index, 0, False))
    manifest = Manifest("", storages, entries, {})
    with write.drafting(store, name, manifest, keep, producer) as (draft, data):
        total = sum(tensor.size_bytes for tensor in found)
        with reporting(progress, f"publishing {name}", total) as tell:
            for tensor, (offset, length) in zip(found, storages):
                if length:
                    target = (ctypes.c_char * length).from_address(draft.data_ptr + data + offset)
                    safetensors.fill(tensor, memoryview(target).cast("B"), tell, STEP_BYTES)
        draft.record_copy(data + total)
        whole = draft.publish()
    logger.info("published %s from %s, %d bytes", name, path, whole.nbytes)
    return Attachment(whole.name, whole.version, whole.id, whole.nbytes)


def state_dict(name: str, store: Optional[Store] = None, *, version: Optional[int] = None) -> Dict[str, torch.Tensor]:
    """The published tensors by name, in shared memory: no copy. Each keeps the memory alive.

    Buffers that are no part of a state dict are left out, as by :meth:`torch.nn.Module.state_dict`. For
    ``module.load_state_dict(state_dict(name), assign=True)``, and whatever else takes one.

    Raises :class:`NotFoundError`, and :class:`CorruptError` when ``name`` is no model.
    """
    store = resolve(store)
    whole = leased(store, name, version)
    manifest, data = read_manifest(whole)
    shown = write.views(whole, manifest, data)
    found: Dict[str, torch.Tensor] = {}
    for entry, tensor in zip(manifest.tensors, shown):
        for place, kind in entry.places:
            if kind != TEMPORARY:
                found[place] = tensor
    return found
