"""The layout of a model in one shared tensor of bytes: a header, then the storages.

The library defines the format and checks every header that it reads.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ... import _native
from ..._native import Tensor
from ...errors import CorruptError, InvalidError

ALIGNMENT_BYTES = 64
HEADER_BYTES_MAX = 100_000_000
DIMENSIONS_MAX = 64
NAME_BYTES_MAX = 4096
#: Exclusive upper bound of element counts and strides.
COUNT_MAX = 1 << 56

#: Bytes of one element, by dtype name.
ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

PARAMETER = "parameter"
BUFFER = "buffer"
#: A buffer outside of the module's state dict.
NON_PERSISTENT = "non-persistent buffer"
#: A tensor of a state dict or a file, which do not record the kind.
TENSOR = "tensor"


class TensorEntry(NamedTuple):
    """One tensor: its view of a storage, and its places in the module."""

    #: (name, kind) of every place. Tied weights have several.
    places: List[Tuple[str, str]]
    dtype: str
    #: In elements.
    shape: Tuple[int, ...]
    #: In elements.
    stride: Tuple[int, ...]
    #: The index of the storage.
    storage: int
    #: From the storage's start, in elements.
    offset: int
    requires_grad: bool

    @property
    def name(self) -> str:
        return self.places[0][0]


class Manifest(NamedTuple):
    """The contents of a published model."""

    #: The module's class, for reports.
    module: str
    #: (offset, length) of each storage in bytes. Offsets start at the end of the header.
    storages: List[Tuple[int, int]]
    tensors: List[TensorEntry]
    #: Its origin, to distinguish checkpoints.
    source: Dict[str, Any]

    @property
    def data_bytes(self) -> int:
        return max((offset + length for offset, length in self.storages), default=0)


def is_name(name: str) -> bool:
    """Whether this is a valid tensor name: 1 to ``NAME_BYTES_MAX`` bytes of UTF-8."""
    try:
        return 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def aligned(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements from a tensor's first to its last in memory, both included; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride))


def encode_manifest(manifest: Manifest) -> bytes:
    """Encodes the header, padded to a multiple of the alignment."""
    try:
        source = json.dumps(manifest.source, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(f"source: not serializable as JSON: {error}", field="source") from None
    return _native.encode_manifest(manifest.module, manifest.storages, manifest.tensors, source)


def read_manifest(whole: Tensor) -> Tuple[Manifest, int]:
    """Reads and checks the manifest of a published model. Returns it, and the offset of the first storage in bytes.

    Raises :class:`CorruptError` if the tensor is not a model.
    """
    module, storages, tensors, source, data = _native.read_manifest(whole)
    try:
        noted = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{whole.name}: source: {error}", field=whole.name) from None
    return Manifest(module, storages, list(map(TensorEntry._make, tensors)), noted), data
