"""Files of models: those that a node sends, and those that arrive. No Ray."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import BinaryIO, Callable, NamedTuple, Optional, Tuple, TypeVar

from ..errors import InvalidError, IoError, NotFoundError

#: What stands for a tensor's id: the word, and the SHA-256 of the file's bytes.
FileId = Tuple[str, str]
_FILE = "file"
#: Bytes that are hashed at a time.
_HASH_BYTES = 4 << 20
#: A hash is remembered if the file's last change is older than this when it is read, in nanoseconds.
_SETTLED_NS = 2_000_000_000
#: The most hashes that are remembered.
_HASHES_MAX = 16384
_Stamp = Tuple[int, int, int, int, int]
_K = TypeVar("_K")
_V = TypeVar("_V")


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
    """A file that other nodes read. Its bytes are read and not mapped: another program can shorten it meanwhile.

    Raises :class:`NotFoundError` for a file that is gone, or has another length.
    """

    def __init__(self, path: Path, file: FileOf) -> None:
        try:
            self._file = _regular(path)
        except OSError as error:
            raise NotFoundError(f"{path}: {error.strerror or error}", field=file.path) from error
        self._nbytes = file.nbytes
        if os.fstat(self._file.fileno()).st_size != file.nbytes:
            self._file.close()
            raise NotFoundError(f"{path}: the file has another length than before", field=file.path)
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
    """The new file ``path`` below ``folder`` for the bytes of another node's ``file``. They are written through a mapping, so
    that the kernel can take the memory of what was written.

    Raises :class:`InvalidError` for a path that leads out of the folder, and :class:`IoError` for one that exists or cannot be
    made, and without room on the disk.
    """

    def __init__(self, folder: Path, path: str, file: FileOf) -> None:
        if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise InvalidError(f"{path!r} is not a path in a model's folder", field="path")
        self._path, self._expected = folder / path, file
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = open(self._path, "x+b", buffering=0)
        except OSError as error:
            raise IoError(f"{self._path}: {error.strerror}", field=file.path) from error
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

    def populate(self, start: int, end: int) -> None:
        """The file has all of its blocks."""

    def publish(self) -> Path:
        """The path, if the bytes are the expected ones. Raises :class:`IoError` otherwise."""
        found = sha256_of(self.fileno())
        self._file.close()
        if found != self._expected.sha256:
            raise IoError("other bytes have come than were stated: the file has changed meanwhile")
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


class Recent(OrderedDict[_K, _V]):
    """The entries that were set last, at most ``count``. Threads set entries one at a time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._count:
            self.popitem(last=False)


class Hashes:
    """The SHA-256 of files. A file is hashed again after it has changed.

    ``now`` is the time in nanoseconds since 1970.
    """

    def __init__(self, hashed: Callable[[int], str] = sha256_of, now: Callable[[], int] = time.time_ns) -> None:
        self._hashed, self._now = hashed, now
        self._lock = threading.Lock()
        #: By device, number, size, and the times of changes of the bytes and of the file.
        self._known: Recent[_Stamp, str] = Recent(_HASHES_MAX)

    def of(self, path: Path) -> Tuple[int, str]:
        """The bytes of a file, and their hash. Raises :class:`OSError`."""
        with _regular(path) as file:
            stamp, began = _stamp(file.fileno()), self._now()
            with self._lock:
                known = self._known.get(stamp)
            if known is None:
                known = self._hashed(file.fileno())
                if _stamp(file.fileno()) != stamp:
                    raise OSError(f"{path}: the file has changed while it was read")
                # A change within the same step of the file system's clock would have the same stamp.
                if began - stamp[4] > _SETTLED_NS:
                    with self._lock:
                        self._known[stamp] = known
            return stamp[2], known


def _regular(path: Path) -> BinaryIO:
    """An open file. Raises :class:`OSError`, also for what is not a file: a pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Without a buffer: another program can change the file.
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def _stamp(fd: int) -> _Stamp:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
