"""How a model lies in one shared tensor of bytes: a header, then its storages.

The format itself is the library's (``files/module.rs`` of cotensor-client), which checks every header that it reads.
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
#: Counts of elements and strides are below this.
COUNT_MAX = 1 << 56

#: Bytes of one element, by the names that torch and the store give the types.
ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
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
}

PARAMETER = "parameter"
BUFFER = "buffer"
#: A buffer that is no part of the module's state dict.
TEMPORARY = "non-persistent buffer"
#: Of a state dict or a file, which do not say.
TENSOR = "tensor"


class TensorEntry(NamedTuple):
    """One tensor: how it is seen in its storage, and where in the module it belongs."""

    #: (name, kind) of every place; several where weights are tied.
    places: List[Tuple[str, str]]
    dtype: str
    #: In elements.
    shape: Tuple[int, ...]
    #: In elements.
    stride: Tuple[int, ...]
    #: Which storage.
    storage: int
    #: From the storage's start, in elements.
    offset: int
    requires_grad: bool

    @property
    def name(self) -> str:
        return self.places[0][0]


class Manifest(NamedTuple):
    """What a published model consists of."""

    #: The module's class, for people.
    module: str
    #: (offset, length) of each storage in bytes; offsets count from the end of the header.
    storages: List[Tuple[int, int]]
    tensors: List[TensorEntry]
    #: Where it came from, to tell one checkpoint from another.
    source: Dict[str, Any]

    @property
    def data_bytes(self) -> int:
        return max((offset + length for offset, length in self.storages), default=0)


def is_name(name: str) -> bool:
    """Whether a tensor can be called so: a text that UTF-8 can write, not too long."""
    try:
        return 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def aligned(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie between a tensor's first and its last, both included; 0 for none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride))


def encode_manifest(manifest: Manifest) -> bytes:
    """The header's bytes, padded to a multiple of the alignment."""
    try:
        source = json.dumps(manifest.source, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(f"source: it cannot be written as JSON: {error}", field="source") from None
    return _native.encode_manifest(manifest.module, manifest.storages, manifest.tensors, source)


def read_manifest(whole: Tensor) -> Tuple[Manifest, int]:
    """The manifest of a published model, checked, and the offset in bytes of its data.

    Raises :class:`CorruptError` where there is none.
    """
    module, storages, tensors, source, data = _native.read_manifest(whole)
    try:
        noted = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{whole.name}: source: {error}", field=whole.name) from None
    return Manifest(module, storages, list(map(TensorEntry._make, tensors)), noted), data
