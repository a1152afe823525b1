"""The folders of models that a node has from other nodes: bounded, and removed after the node has ended. No Ray."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import Dict, Iterator, List, Optional

from ..errors import IoError, OverBudgetError

#: The part of the disk's free bytes, those of the folders included, that the folders may have.
DISK_SHARE = 0.5
#: The file of which the agent of a node has a lock.
_LOCK = "lock"
#: The time for a lock that another process has, and between two looks at it, in seconds.
_LOCK_TIMEOUT, _LOCK_INTERVAL = 30.0, 0.02
#: The begin of the names of folders that are made or removed.
_PARTIAL = "partial-"


class Folders:
    """The folders of one node, below ``root``, each named by the content of its model. A folder with its name is complete.

    Folders that no process uses (:func:`use`) stay until their room is needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        # The former agent of this node has ended, or ends.
        self._agent_lock = _locked(root)
        self._changing = threading.Lock()
        #: The bytes of each folder that is made.
        self._coming: Dict[Path, int] = {}
        for left in root.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)

    def find(self, content: str) -> Optional[Path]:
        """The folder of a content, which becomes the one that was used last."""
        folder = self._root / content
        try:
            os.utime(folder)
        except FileNotFoundError:
            return None
        return folder

    @contextlib.contextmanager
    def new(self, content: str, nbytes: int, what: str) -> Iterator[Path]:
        """A block that makes the folder of a content, of so many bytes, in the folder that it gets. It is removed if the block
        fails.

        Raises :class:`OverBudgetError` if folders that are used leave no room for it.
        """
        folder = _partial(self._root)
        with self._changing:
            self._make_room(nbytes, what)
            self._coming[folder] = nbytes
        try:
            folder.mkdir(mode=0o700)
            yield folder
            folder.rename(self._root / content)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with self._changing:
                del self._coming[folder]

    def contents(self) -> List[str]:
        """The contents that have a folder; the one that was used last is at the end."""
        found = []
        for folder in _complete(self._root):
            with contextlib.suppress(FileNotFoundError):
                found.append((folder.stat().st_mtime_ns, folder.name))
        return [name for _, name in sorted(found)]

    def _make_room(self, nbytes: int, what: str) -> None:
        """Removes folders that no process uses, first the one whose last use is the longest ago."""
        limit = int((shutil.disk_usage(self._root).free + _bytes_in(self._root)) * DISK_SHARE)
        sizes = {folder: _bytes_in(folder) for folder in [self._root / content for content in self.contents()]}
        used = sum(self._coming.values()) + sum(sizes.values())
        for folder, size in sizes.items():
            if used + nbytes <= limit:
                return
            if _removed(folder):
                used -= size
        if used + nbytes > limit:
            raise OverBudgetError(
                f"{what}: {nbytes} bytes do not fit: models of other nodes may have {limit} bytes of the disk at "
                f"{self._root}, and those in use have {used}: end the programs that use them, or free disk space",
                field=what,
            )


def use(folder: Path) -> Optional[int]:
    """A descriptor: as long as this process or a child has it, the folder is not removed. None if the folder was removed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    # Waits while it is removed.
    _lock(descriptor, fcntl.LOCK_SH, folder)
    if _is_at(descriptor, folder):
        return descriptor
    os.close(descriptor)
    return None


def remove_ended(parent: Path, own: Path) -> None:
    """Removes the folders of nodes that have ended: no agent has their lock, and no process uses a folder."""
    for root in parent.glob("ray-*"):
        if root == own:
            continue
        with contextlib.suppress(OSError), open(root / _LOCK, "rb", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if all([_removed(folder) for folder in _complete(root)]):
                shutil.rmtree(root, ignore_errors=True)


def _locked(root: Path) -> int:
    """A descriptor that has the lock of a node's folders. Waits for another process that has it."""
    while True:
        root.mkdir(exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        _lock(descriptor, fcntl.LOCK_EX, root / _LOCK)
        if _is_at(descriptor, root / _LOCK):
            return descriptor
        # Another node's agent has removed the folder meanwhile.
        os.close(descriptor)


def _lock(descriptor: int, operation: int, path: Path) -> None:
    """Locks an open file or folder. Raises :class:`IoError`, and closes it, if another process keeps the lock for too long."""
    end = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            return fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                os.close(descriptor)
                problem = f"another process has had its lock for {_LOCK_TIMEOUT:.0f} s: end it"
                raise IoError(f"{path}: {problem}", field="lock", file=str(path)) from error
        time.sleep(_LOCK_INTERVAL)


def _removed(folder: Path) -> bool:
    """Removes a folder, and returns whether it could: not one that a process uses."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial = _partial(folder.parent)
        folder.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _partial(root: Path) -> Path:
    return root / f"{_PARTIAL}{uuid.uuid4().hex}"


def _complete(root: Path) -> List[Path]:
    return [folder for folder in root.iterdir() if folder.name != _LOCK and not folder.name.startswith(_PARTIAL)]


def _bytes_in(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(at, name)).st_size
    return total
