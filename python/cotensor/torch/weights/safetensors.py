"""Reads safetensors files directly into shared memory.

The format is at https://huggingface.co/docs/safetensors: the header's length, the header as JSON, and the tensors'
bytes.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ...errors import CorruptError, CotensorError, InvalidError, IoError, NotFoundError, UnsupportedError
from .manifest import DIMENSIONS_MAX, HEADER_BYTES_MAX, ITEM_BYTES, is_name

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}


@dataclass
class FileTensor:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    file: Path
    #: Where its bytes begin in the file.
    offset: int
    size_bytes: int


def find(path: Path) -> List[FileTensor]:
    """The tensors of a file, or of the checkpoint in a folder, in the order of the files."""
    if not path.is_dir():
        return read(path)
    index = path / INDEX
    if index.is_file():
        return _sharded(path, index)
    if (path / SINGLE).is_file():
        return read(path / SINGLE)
    raise NotFoundError(f"{path}: neither {SINGLE} nor {INDEX}", file=str(path))


def read(file: Path) -> List[FileTensor]:
    """The tensors of one file."""
    try:
        # Before `open`, which blocks on a pipe.
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise InvalidError(f"{file}: not a regular file", file=str(file))
        with open(file, "rb") as opened:
            total = os.fstat(opened.fileno()).st_size
            prefix = opened.read(8)
            if len(prefix) < 8:
                raise CorruptError(f"{file}: not a safetensors file: {total} bytes", file=str(file))
            length = struct.unpack("<Q", prefix)[0]
            if not 2 <= length <= min(HEADER_BYTES_MAX, total - 8):
                raise CorruptError(
                    f"{file}: not a safetensors file: a header of {length} bytes in {total}", file=str(file)
                )
            text = opened.read(length)
    except CotensorError:
        raise
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such file", file=str(file)) from None
    except OSError as error:
        raise IoError(f"{file}: {error.strerror or error}", file=str(file)) from error
    except ValueError as error:
        raise InvalidError(f"path: {error}", field="path") from error
    header = _json(file, text)
    data = 8 + length
    found = [_tensor(file, name, entry, data, total) for name, entry in header.items() if name != "__metadata__"]
    found.sort(key=lambda tensor: tensor.offset)
    for before, after in zip(found, found[1:]):
        if before.offset + before.size_bytes > after.offset:
            raise _wrong(file, after.name, f"its data overlaps that of {before.name}")
    return found


def _tensor(file: Path, name: str, entry: Any, data: int, total: int) -> FileTensor:
    if not is_name(name):
        raise _wrong(file, name[:80], "the name is empty or too long")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise _wrong(file, name, "dtype, shape or data_offsets is missing")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise _wrong(file, name, "dtype is not a string")
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{name}: {dtype[:20]} cannot be shared; supported: {', '.join(DTYPES)}", field=name, file=str(file)
        )
    if not _numbers(shape) or len(shape) > DIMENSIONS_MAX or not _numbers(offsets) or len(offsets) != 2:
        raise _wrong(file, name, f"shape {str(shape)[:80]}, data_offsets {str(offsets)[:80]}")
    size = ITEM_BYTES[DTYPES[dtype]]
    for dimension in shape:
        size *= dimension
    start, stop = offsets
    if stop - start != size or data + stop > total:
        message = f"bytes {start} to {stop} of {total - data}, {size} for its shape and dtype"
        raise _wrong(file, name, message)
    return FileTensor(name, DTYPES[dtype], tuple(shape), file, data + start, size)


def _sharded(folder: Path, index: Path) -> List[FileTensor]:
    listed = _json(index, index.read_bytes()).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CorruptError(f"{index}: weight_map is missing", file=str(index))
    files: Dict[str, None] = {}
    for name, file in listed.items():
        if not isinstance(file, str) or file in ("", ".", "..") or "/" in file or "\0" in file:
            raise CorruptError(f"{index}: {name}: not a plain file name", field=name, file=str(index))
        files[file] = None
    found: Dict[str, FileTensor] = {}
    for file in files:
        for tensor in read(folder / file):
            if listed.get(tensor.name) == file:
                found[tensor.name] = tensor
    for name, file in listed.items():
        if name not in found:
            message = f"{folder / file}: {name} is in the index, but not in the file"
            raise CorruptError(message, field=name, file=str(folder / file))
    return list(found.values())


def fill(tensor: FileTensor, target: memoryview, advance: Any, step_bytes: int) -> None:
    """Reads a tensor's data into ``target``."""
    descriptor = os.open(tensor.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < tensor.size_bytes:
            part = target[done : min(done + step_bytes, tensor.size_bytes)]
            count = os.preadv(descriptor, [part], tensor.offset + done)
            if count == 0:
                raise CorruptError(f"{tensor.file}: the file ends inside {tensor.name}", file=str(tensor.file))
            done += count
            advance(count)
    finally:
        os.close(descriptor)


def _json(file: Path, text: bytes) -> Dict[str, Any]:
    try:
        read = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{file}: invalid JSON: {error}", file=str(file)) from None
    if not isinstance(read, dict):
        raise CorruptError(f"{file}: the JSON is not an object", file=str(file))
    return read


def _once(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a duplicate key")
    return found


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 56 for item in value)


def _wrong(file: Path, name: str, why: str) -> CorruptError:
    return CorruptError(f"{file}: {name}: {why}", field=name, file=str(file))


def check_path(path: Any) -> Path:
    """The path. Raises :class:`InvalidError` for other types."""
    try:
        return Path(os.fspath(path))
    except TypeError:
        raise InvalidError(f"pass a path, not {type(path).__name__}", field="path") from None
