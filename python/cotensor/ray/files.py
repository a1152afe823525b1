"""Files of models: those that a node sends, and those that arrive. No Ray."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from pathlib import Path
from typing import Callable, Dict, NamedTuple, Optional, Tuple

from ..errors import InvalidError, IoError, NotFoundError

#: What stands for a tensor's id: the word, and the SHA-256 of the file's bytes.
FileId = Tuple[str, str]
_FILE = "file"
#: Bytes that are hashed at a time.
_HASH_BYTES = 4 << 20


class FileOf(NamedTuple):
    """A file of a model: its path in the model's folder, with ``/`` between its parts, its bytes and their SHA-256."""

    path: str
    nbytes: int
    sha256: str

    @property
    def id(self) -> FileId:
        """What stands for a tensor's id."""
        return _FILE, self.sha256


class OpenFile:
    """A file that other nodes read. Its bytes are read and not mapped: another program can shorten it meanwhile."""

    def __init__(self, path: Path, file: FileOf) -> None:
        try:
            self._file = open(path, "rb", buffering=0)
        except OSError as error:
            raise NotFoundError(f"{path}: {error.strerror}", field=file.path) from error
        self._nbytes = file.nbytes
        #: See :class:`~cotensor.ray.holdings.Leased`.
        self.id = file.id

    def release(self) -> None:
        """The last reader closes it."""

    @property
    def size(self) -> Optional[int]:
        """See :class:`~cotensor.ray.arrival.Readable`."""
        return self._nbytes

    def wait(self, offset: int, timeout: float) -> int:
        """See :class:`~cotensor.ray.arrival.Readable`."""
        return self._nbytes

    def part(self, start: int, end: int) -> memoryview:
        """See :class:`~cotensor.ray.arrival.Readable`."""
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) < end - start:
            raise EOFError("the file is shorter than it was")
        return memoryview(data)


class FileTarget:
    """A new file below ``folder`` for the bytes of another node's. They are written through a mapping, so that the kernel can
    take the memory of what was written."""

    def __init__(self, folder: Path, file: FileOf) -> None:
        if not all(part.strip(".") for part in file.path.split("/")):
            raise InvalidError(f"{file.path!r} is no path in a model's folder", field="path")
        self._path, self._expected = folder / file.path, file
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = open(self._path, "x+b", buffering=0)
        try:
            if file.nbytes:
                # Without room on the disk, this fails, and not a write to the mapping, which would end the process.
                os.posix_fallocate(self._file.fileno(), 0, file.nbytes)
        except OSError as error:
            self.discard()
            raise IoError(f"{self._path}: {file.nbytes} bytes: {error.strerror}", field=file.path) from error

    @property
    def nbytes(self) -> int:
        """See :class:`~cotensor.ray.pulls.Target`."""
        return self._expected.nbytes

    def fileno(self) -> int:
        """See :class:`~cotensor.ray.pulls.Target`."""
        return self._file.fileno()

    def memory(self) -> memoryview:
        """See :class:`~cotensor.ray.pulls.Target`."""
        return memoryview(mmap.mmap(self.fileno(), self.nbytes))

    def publish(self) -> Path:
        """The path, if the bytes are the expected ones. Raises :class:`IoError` otherwise."""
        found = sha256_of(self.fileno())
        self._file.close()
        if found != self._expected.sha256:
            raise IoError(f"{self._expected.path}: other bytes have come than were stated; the file has changed meanwhile")
        return self._path

    def discard(self) -> None:
        """See :class:`~cotensor.ray.pulls.Target`."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def sha256_of(fd: int) -> str:
    """The SHA-256 of a file."""
    digest, at = hashlib.sha256(), 0
    while True:
        data = os.pread(fd, _HASH_BYTES, at)
        if not data:
            return digest.hexdigest()
        digest.update(data)
        at += len(data)


class Hashes:
    """The SHA-256 of files. A file is hashed again after it has changed."""

    def __init__(self, hashed: Callable[[int], str] = sha256_of) -> None:
        self._hashed = hashed
        self._lock = threading.Lock()
        #: By device, number, size and time of the change.
        self._known: Dict[Tuple[int, int, int, int], str] = {}

    def of(self, path: Path) -> Tuple[int, str]:
        """The bytes of a file, and their hash. Raises :class:`OSError`."""
        with open(path, "rb", buffering=0) as file:
            stamp = _stamp(file.fileno())
            with self._lock:
                known = self._known.get(stamp)
            if known is None:
                known = self._hashed(file.fileno())
                if _stamp(file.fileno()) != stamp:
                    raise OSError(f"{path}: the file has changed while it was read")
                with self._lock:
                    self._known[stamp] = known
            return stamp[2], known


def _stamp(fd: int) -> Tuple[int, int, int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
