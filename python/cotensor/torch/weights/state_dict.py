"""State dicts and safetensors files."""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from ..._native import Store
from ..modes import default_modes
from ..progress import STEP_BYTES, Progress, reporting
from ..store import leased, resolve
from . import nested, safetensors, write
from .collect import contiguous_stride, gather
from .manifest import NON_PERSISTENT, TENSOR, Manifest, TensorEntry, aligned, read_manifest
from .models import Attachment

logger = logging.getLogger("cotensor.torch")


def publish_state_dict(
    mapping: Union[Mapping[Any, Any], Sequence[Any]],
    name: str,
    store: Optional[Store] = None,
    *,
    keep: bool = True,
    producer: Optional[str] = None,
    progress: Progress = None,
) -> Attachment:
    """Publishes a state dict under ``name``, with one copy. Tensors of the same memory are stored once. All of them are on the
    host, or on one CUDA device, where they are published.

    :func:`attach` accepts it like a published module, but keeps the module's ``requires_grad`` and the buffers that a state dict
    does not have. Options and exceptions are those of :func:`publish`.

    The state may be nested: dicts, lists and tuples of tensors, numbers, strings and ``None``, as
    ``{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}``. :func:`state_dict` returns the same
    structure. Values of other types raise :class:`UnsupportedError` with their path.
    """
    store = resolve(store)
    with default_modes():
        found, source = nested.split(mapping)
        gathered = gather(found, "", source)
    whole = write.write(store, name, gathered, keep, producer, progress)
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
    """Publishes a safetensors file, or a checkpoint's folder with ``model.safetensors`` or with shards and their index.

    Each file is read once, directly into shared memory. Otherwise as :func:`publish_state_dict`.

    Raises :class:`CorruptError` for a damaged file, :class:`NotFoundError` without a file, and :class:`UnsupportedError` with the
    name of a tensor whose dtype cannot be shared. Nothing is published then.
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
    with write.building(store, name, manifest, keep, producer) as (builder, data):
        total = sum(tensor.size_bytes for tensor in found)
        with reporting(progress, f"publishing {name}", total) as advance:
            for tensor, (offset, length) in zip(found, storages):
                if length:
                    target = (ctypes.c_char * length).from_address(builder.data_ptr + data + offset)
                    safetensors.fill(tensor, memoryview(target).cast("B"), advance, STEP_BYTES)
        builder.record_copy(data + total)
        whole = builder.publish()
    logger.info("published %s from %s, %d bytes", name, path, whole.nbytes)
    return Attachment(whole.name, whole.version, whole.id, whole.nbytes)


def state_dict(name: str, store: Optional[Store] = None, *, version: Optional[int] = None) -> Any:
    """The published tensors by name, in shared memory, without a copy. Each keeps the memory alive.

    As in :meth:`torch.nn.Module.state_dict`, non-persistent buffers are left out. Use it for
    ``module.load_state_dict(state_dict(name), assign=True)`` and similar functions. As PyTorch does, ``assign`` gives each name a
    parameter of its own: tied weights then have one memory and two parameters, of which an optimizer changes one. :func:`attach`
    keeps them tied. A nested state has the structure that was published.

    Raises :class:`NotFoundError`, and :class:`CorruptError` if ``name`` is not a model.
    """
    store = resolve(store)
    whole = leased(store, name, version)
    manifest, data = read_manifest(whole)
    shown = write.views(whole, manifest, data)
    found: Dict[str, torch.Tensor] = {}
    for entry, tensor in zip(manifest.tensors, shown):
        for place, kind in entry.places:
            if kind != NON_PERSISTENT:
                found[place] = tensor
    structure = manifest.source.get(nested.STRUCTURE) if isinstance(manifest.source, dict) else None
    return found if structure is None else nested.joined(whole.name, structure, found)
