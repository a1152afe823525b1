"""Collects the tensors of a module, and lays them out in storages."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch.jit._script import RecursiveScriptModule
from torch.nn.parameter import is_lazy

from ...errors import InvalidError, UnsupportedError
from .manifest import (
    ALIGNMENT_BYTES,
    BUFFER,
    COUNT_MAX,
    ITEM_BYTES,
    NAME_BYTES_MAX,
    NON_PERSISTENT,
    PARAMETER,
    TENSOR,
    Manifest,
    TensorEntry,
    aligned,
    is_name,
    span,
)
from .place import HOST, Place, Run, place_of_tensor, runs

#: torch's dtypes by name. Older torch versions lack some.
DTYPES: Dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
NAMES: Dict[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

#: A name of a tensor, and its kind.
Named = Tuple[str, str]


@dataclass
class Part:
    """Elements of a tensor to copy into a storage."""

    #: The offset of the first element in the storage.
    offset_bytes: int
    size_bytes: int
    #: Contiguous bytes; with ``scattered``, a strided tensor whose gaps are not copied.
    tensor: torch.Tensor
    scattered: bool
    #: The owner of the memory.
    keep: torch.Tensor


def check_module(module: Any) -> None:
    """Raises :class:`InvalidError` unless ``module`` is a module."""
    if not isinstance(module, torch.nn.Module):
        hint = "; publish_state_dict publishes dicts and lists" if isinstance(module, (dict, list, tuple)) else ""
        raise InvalidError(f"module: pass a torch.nn.Module, not {type(module).__name__}{hint}", field="module")


def plain_module(module: Any) -> torch.nn.Module:
    """The module; for a module from ``torch.compile``, the module inside."""
    check_module(module)
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and isinstance(module, compiler.OptimizedModule):
        inside: torch.nn.Module = module._orig_mod
        return inside
    return module  # type: ignore[no-any-return]


#: Name, kind and tensor, and the owning module with the attribute's name.
NamedTensor = Tuple[str, str, torch.Tensor, torch.nn.Module, str]


def named_tensors(module: torch.nn.Module) -> List[NamedTensor]:
    """Every parameter and buffer under each of its names."""
    found: List[NamedTensor] = []
    for prefix, part in module.named_modules(remove_duplicate=False):
        dot = prefix + "." if prefix else ""
        for leaf, value in part._parameters.items():
            if value is not None:
                found.append((dot + leaf, PARAMETER, value, part, leaf))
        non_persistent = part._non_persistent_buffers_set
        for leaf, buffer in part._buffers.items():
            if buffer is not None:
                found.append((dot + leaf, NON_PERSISTENT if leaf in non_persistent else BUFFER, buffer, part, leaf))
    return found


def places(module: torch.nn.Module) -> List[Tuple[str, str, torch.Tensor]]:
    """As :func:`named_tensors`: name, kind, tensor."""
    return [found[:3] for found in named_tensors(module)]


def check_complete(module: torch.nn.Module) -> None:
    """Raises :class:`UnsupportedError` for weights that are neither parameters nor buffers."""
    known = {id(tensor) for _, _, tensor in places(module)}
    names = {name for name, _, _ in places(module)}
    for name, value in module.state_dict(keep_vars=True).items():
        if name not in names and id(value) not in known and not name.endswith("_extra_state"):
            _refuse_packed(name)
    for prefix, part in module.named_modules():
        attributes = vars(part)
        if isinstance(part, RecursiveScriptModule):
            attributes = {name: part._c.getattr(name) for name in part._concrete_type.get_attributes()}
        for name, value in attributes.items():
            # torch's quantized modules keep their weights in backend objects.
            if isinstance(value, torch.ScriptObject) and not isinstance(value, torch._C.ScriptModule):
                _refuse_packed(f"{prefix}.{name}" if prefix else name)


def _refuse_packed(name: str) -> None:
    raise UnsupportedError(
        f"{name}: packed weights of a quantized module are neither a parameter nor a buffer, and cannot be "
        "shared: publish the module before quantization",
        field=name,
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor has no more state than elements, dtype and strides."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) or getattr(type(tensor), "_is_plain_tensor", False)


def check(name: str, tensor: torch.Tensor) -> Place:
    """Where the tensor is. Raises :class:`InvalidError` or :class:`UnsupportedError` with its name if it cannot be published."""
    if not is_name(name):
        raise InvalidError(f"{name[:80]!r}: a name has 1 to {NAME_BYTES_MAX} bytes", field=name[:80])
    if is_lazy(tensor):
        raise InvalidError(f"{name}: the parameter is not initialized: run the module once", field=name)
    if not is_plain(tensor):
        raise UnsupportedError(
            f"{name}: a {type(tensor).__name__} has more state than a tensor, and cannot be shared", field=name
        )
    if tensor.is_meta:
        raise InvalidError(f"{name}: the tensor is on the meta device and has no data", field=name)
    if tensor.is_nested:
        raise UnsupportedError(f"{name}: nested tensors cannot be shared: use to_padded_tensor(0)", field=name)
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"{name}: the layout {tensor.layout} cannot be shared: use to_dense()", field=name)
    if tensor.is_quantized:
        raise UnsupportedError(f"{name}: quantized tensors ({tensor.dtype}) cannot be shared: use dequantize()", field=name)
    if tensor.dtype not in NAMES:
        raise UnsupportedError(f"{name}: {tensor.dtype} cannot be shared; supported: {', '.join(NAMES.values())}", field=name)
    if any(step >= COUNT_MAX for step in tensor.stride()):
        raise UnsupportedError(f"{name}: the strides {list(tensor.stride())} are too large: use contiguous()", field=name)
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError(f"{name}: a lazy negation or conjugation cannot be shared: use resolve_neg()", field=name)
    return place_of_tensor(name, tensor)


class Gathered(NamedTuple):
    """Tensors to publish."""

    manifest: Manifest
    #: What is copied into each storage.
    sources: List[Sequence[Union[Part, Run]]]
    place: Place


def gather(
    found: Iterable[Tuple[str, str, torch.Tensor]], module: str, source: Optional[Dict[str, Any]] = None
) -> Gathered:
    """Lays tensors out in storages, with one copy of memory that several tensors show.

    A tensor with several names has one entry. Tensors that overlap in memory still overlap. Every tensor keeps its exact strides,
    also of dimensions of size 1, because torch chooses kernels and memory formats by them. All of them are in one place.
    """
    groups: Dict[Any, Shown] = {}
    first: Optional[Tuple[str, Place]] = None
    for name, kind, tensor in found:
        place = check(name, tensor)
        first = first or (name, place)
        if place != first[1]:
            message = f"{name}: the tensor is on {place.name}, and {first[0]} on {first[1].name}: move them to one device"
            raise UnsupportedError(message, field=name)
        key: Any = id(tensor)
        if kind == TENSOR and tensor.numel():
            # A state dict has one object per name of a tied parameter.
            key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        groups.setdefault(key, (tensor, []))[1].append((name, kind))
    clusters = _clusters(list(groups.values()))
    storages: List[Tuple[int, int]] = []
    entries: List[TensorEntry] = []
    sources: List[Sequence[Union[Part, Run]]] = []
    where = first[1] if first else HOST
    end = 0
    for cluster in clusters:
        parts, size_bytes, shown = _lay(cluster, where)
        offset = aligned(end)
        end = offset + size_bytes
        storages.append((offset, size_bytes))
        sources.append(parts)
        for tensor, named, stride, start_bytes in shown:
            entries.append(
                TensorEntry(
                    places=named,
                    dtype=NAMES[tensor.dtype],
                    shape=tuple(tensor.shape),
                    stride=stride,
                    storage=len(storages) - 1,
                    offset=start_bytes // tensor.element_size(),
                    requires_grad=tensor.requires_grad,
                )
            )
    return Gathered(Manifest(module, storages, entries, source or {}), sources, where)


Shown = Tuple[torch.Tensor, List[Named]]


def _extent(tensor: torch.Tensor) -> Tuple[int, int]:
    """The first and the end address of a tensor."""
    start: int = tensor.data_ptr()
    return start, start + span(tensor.shape, tensor.stride()) * tensor.element_size()


def _clusters(shown: List[Shown]) -> List[List[Shown]]:
    """Groups overlapping tensors. The groups are in the order of their first tensors."""
    ordered = sorted(range(len(shown)), key=lambda index: _extent(shown[index][0]))
    clusters: List[List[int]] = []
    end = 0
    for index in ordered:
        start, stop = _extent(shown[index][0])
        if clusters and start < end and start < stop:
            clusters[-1].append(index)
        else:
            clusters.append([index])
        end = max(end, stop)
    return [[shown[index] for index in sorted(cluster)] for cluster in sorted(clusters, key=min)]


def _lay(
    cluster: List[Shown], where: Place
) -> Tuple[Sequence[Union[Part, Run]], int, List[Tuple[torch.Tensor, List[Named], Tuple[int, ...], int]]]:
    """The parts to copy for a cluster, its length in bytes, and each tensor's strides in elements and start in bytes."""
    tensors = [tensor for tensor, _ in cluster]
    if not any(tensor.numel() for tensor in tensors):
        return [], 0, [(tensor, named, tensor.stride(), 0) for tensor, named in cluster]
    low = min(_extent(tensor)[0] for tensor in tensors)
    length = max(_extent(tensor)[1] for tensor in tensors) - low
    candidates = (low % ALIGNMENT_BYTES, *range(8))
    fits = (pad for pad in candidates if all((t.data_ptr() - low + pad) % t.element_size() == 0 for t in tensors))
    pad = next(fits, None)
    if pad is None:
        name = cluster[0][1][0][0]
        raise UnsupportedError(f"{name}: tensors overlap at unaligned addresses: clone() one of them", field=name)
    shown = [(t, named, t.stride(), t.data_ptr() - low + pad) for t, named in cluster]
    full = [(named[0][0], tensor, start) for tensor, named, _, start in shown if tensor.numel()]
    if where.is_host:
        return [_part(tensor, start) for _, tensor, start in full], pad + length, shown
    each = [runs(name, tensor, start, _is_apart(tensor.stride(), tensor.shape)) for name, tensor, start in full]
    return [run for found in each for run in found], pad + length, shown


def _part(tensor: torch.Tensor, start: int) -> Part:
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:  # an expanded dimension is copied once
            tensor = tensor.narrow(dimension, 0, 1)
    tensor = tensor.detach()
    extent = span(tensor.shape, tensor.stride())
    if extent > tensor.numel() and _is_apart(tensor.stride(), tensor.shape):
        return Part(start, tensor.numel() * tensor.element_size(), tensor, True, tensor)
    size_bytes = extent * tensor.element_size()
    # Not by its storage, whose address may be inside foreign memory.
    window = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    return Part(start, size_bytes, torch.frombuffer(window, dtype=torch.uint8), False, tensor)


def _is_apart(stride: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether no two elements share memory, but for those of expanded dimensions. False if this is not certain."""
    reach = 1
    for step, size in sorted(zip(stride, shape)):
        if step == 0:
            continue
        if size > 1 and step < reach:
            return False
        reach += (size - 1) * step
    return True


def contiguous_stride(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """The row-major strides of a shape, in elements."""
    stride: List[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
