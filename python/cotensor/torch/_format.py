"""How a model lies in one shared tensor of bytes: a header, then its storages.

::

    "COTMODEL" | version, u32 | 0, u32 | length of the text, u64 | text, JSON | zeros | storages, each at a multiple of
    64 bytes

All numbers are little-endian. The text lists storages (offset and length in bytes, from the first byte after the
header's padding) and tensors (dtype, shape and strides in elements, which storage, its places in the module). Whoever
attaches reads what another process wrote: nothing of it is believed before :func:`parse` has checked it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..errors import CorruptError

MAGIC = b"COTMODEL"
VERSION = 1
ALIGNMENT_BYTES = 64
HEADER_BYTES_MAX = 100_000_000
TENSORS_MAX = 1_000_000
DIMENSIONS_MAX = 64
NAME_BYTES_MAX = 4096
#: No count of elements or bytes reaches this, so that sums of a few cannot overflow a signed 64-bit number.
COUNT_MAX = 1 << 56

_PREFIX = struct.Struct("<8sIIQ")

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
KINDS = (PARAMETER, BUFFER, TEMPORARY, TENSOR)


@dataclass
class TensorEntry:
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


@dataclass
class Manifest:
    """What a published model consists of."""

    #: The module's class, for people.
    module: str
    #: (offset, length) of each storage in bytes; offsets count from the end of the header.
    storages: List[Tuple[int, int]]
    tensors: List[TensorEntry]
    #: Where it came from, to tell one checkpoint from another.
    source: Dict[str, Any] = field(default_factory=dict)

    @property
    def data_bytes(self) -> int:
        return max((offset + length for offset, length in self.storages), default=0)


def aligned(size_bytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie between a tensor's first and its last, both included; 0 for none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride))


def encode(manifest: Manifest) -> bytes:
    """The header's bytes, padded to a multiple of the alignment."""
    text = json.dumps(
        {
            "module": manifest.module,
            "storages": manifest.storages,
            "tensors": [
                {
                    "places": tensor.places,
                    "dtype": tensor.dtype,
                    "shape": tensor.shape,
                    "stride": tensor.stride,
                    "storage": tensor.storage,
                    "offset": tensor.offset,
                    "requires_grad": tensor.requires_grad,
                }
                for tensor in manifest.tensors
            ],
            "source": manifest.source,
        },
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    header = _PREFIX.pack(MAGIC, VERSION, 0, len(text)) + text
    return header + bytes(aligned(len(header)) - len(header))


def prefix_length() -> int:
    """Bytes to read before the text's length is known."""
    return _PREFIX.size


def text_length(name: str, prefix: bytes, total_bytes: int) -> int:
    """The length of the text, by the first bytes of a tensor of ``total_bytes``."""
    if len(prefix) < _PREFIX.size or prefix[: len(MAGIC)] != MAGIC:
        raise CorruptError(f"{name}: this is no model that cotensor.torch published", field=name)
    _, version, zero, length = _PREFIX.unpack(prefix[: _PREFIX.size])
    if version != VERSION or zero:
        raise CorruptError(f"{name}: a model of format {version}, which this version does not know", field=name)
    if length > HEADER_BYTES_MAX or _PREFIX.size + length > total_bytes:
        raise CorruptError(f"{name}: a header of {length} bytes in {total_bytes}", field=name)
    return int(length)


def parse(name: str, text: bytes, total_bytes: int) -> Tuple[Manifest, int]:
    """The manifest, checked, and the offset in bytes of the data in the tensor of ``total_bytes``."""
    try:
        read = json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{name}: the header is no JSON: {error}", field=name) from None
    data = aligned(_PREFIX.size + len(text))
    room = total_bytes - data
    checked = _Checked(name)
    top = checked.fields(read, "the header", {"module", "storages", "tensors", "source"})
    if not isinstance(top["module"], str) or not isinstance(top["source"], dict):
        raise checked.wrong("the header", "module has to be a text and source an object")
    storages: List[Tuple[int, int]] = []
    end = 0
    for index, entry in enumerate(checked.items(top["storages"], "storages", TENSORS_MAX)):
        what = f"storage {index}"
        offset, length = checked.numbers(entry, what, 2, 2)
        if offset % ALIGNMENT_BYTES or offset < end or offset + length > room:
            raise checked.wrong(
                what, f"bytes {offset} to {offset + length} of {max(room, 0)}, the one before ends at {end}"
            )
        end = offset + length
        storages.append((offset, length))
    seen: Dict[str, None] = {}
    tensors = [
        _tensor(checked, entry, f"tensor {index}", storages, seen)
        for index, entry in enumerate(checked.items(top["tensors"], "tensors", TENSORS_MAX))
    ]
    return Manifest(top["module"], storages, tensors, top["source"]), data


_FIELDS = {"places", "dtype", "shape", "stride", "storage", "offset", "requires_grad"}


def _tensor(
    checked: "_Checked", entry: Any, what: str, storages: List[Tuple[int, int]], seen: Dict[str, None]
) -> TensorEntry:
    values = checked.fields(entry, what, _FIELDS)
    places: List[Tuple[str, str]] = []
    for place in checked.items(values["places"], what, TENSORS_MAX, "places"):
        if not (type(place) is list and len(place) == 2 and type(place[0]) is str and type(place[1]) is str):
            raise checked.wrong(what, "a place is a name and a kind")
        name, kind = place
        if kind not in KINDS or not name or len(name) > NAME_BYTES_MAX or name in seen:
            raise checked.wrong(what, f"{name[:80]!r} as {kind[:80]!r}, once each")
        seen[name] = None
        places.append((name, kind))
    if not places:
        raise checked.wrong(what, "it has no name")
    dtype = values["dtype"]
    if type(dtype) is not str or dtype not in ITEM_BYTES:
        raise checked.wrong(what, f"dtype {str(dtype)[:80]!r}")
    shape, stride, storage, offset = values["shape"], values["stride"], values["storage"], values["offset"]
    checked.numbers(shape, what, 0, DIMENSIONS_MAX, "shape")
    checked.numbers(stride, what, len(shape), len(shape), "stride")
    checked.numbers([storage, offset], what, 2, 2, "storage and offset")
    if type(values["requires_grad"]) is not bool:
        raise checked.wrong(what, "requires_grad has to be true or false")
    if storage >= len(storages):
        raise checked.wrong(what, f"storage {storage} of {len(storages)}")
    item = ITEM_BYTES[dtype]
    elements = 1
    for size in shape:
        elements *= size
    if elements * item >= COUNT_MAX:
        raise checked.wrong(what, f"shape {shape}")
    if (offset + span(shape, stride)) * item > storages[storage][1]:
        raise checked.wrong(what, f"it reaches past the {storages[storage][1]} bytes of its storage")
    return TensorEntry(places, dtype, tuple(shape), tuple(stride), storage, offset, values["requires_grad"])


class _Checked:
    """Values of a header that have the right types, or CorruptError."""

    def __init__(self, name: str) -> None:
        self.name = name

    def wrong(self, what: str, why: str) -> CorruptError:
        return CorruptError(f"{self.name}: {what}: {why}", field=self.name)

    def fields(self, value: Any, what: str, wanted: "set[str]") -> Dict[str, Any]:
        if type(value) is not dict or value.keys() != wanted:
            raise self.wrong(what, f"an object of {', '.join(sorted(wanted))} is expected")
        return value

    def items(self, value: Any, what: str, count_max: int, field: str = "") -> List[Any]:
        if not isinstance(value, list) or len(value) > count_max:
            raise self.wrong(f"{what}: {field}" if field else what, f"a list of at most {count_max} is expected")
        return value

    def numbers(self, value: Any, what: str, count_min: int, count_max: int, field: str = "") -> List[int]:
        right = type(value) is list and count_min <= len(value) <= count_max
        if right:
            # A loop: there are thousands of these, and a generator for each takes longer than what it looks at.
            for item in value:
                right = right and type(item) is int and 0 <= item < COUNT_MAX
        if not right:
            raise self.wrong(f"{what}: {field}" if field else what, f"{count_min} to {count_max} whole numbers are expected")
        found: List[int] = value
        return found


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _no_constant(text: str) -> Optional[float]:
    raise ValueError(f"{text} is no number")
