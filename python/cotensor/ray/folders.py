"""The folders of models that a node has from other nodes: bounded, and removed after the node has ended. No Ray."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from pathlib import Path
from typing import Callable, Iterator, List, Optional

from ..errors import OverBudgetError

#: The part of the disk's free bytes, those of the folders included, that the folders may have.
DISK_SHARE = 0.5
#: The file that says which process has the folders of a node: it has a lock. Its content is the socket of the node's daemon.
_LOCK = "lock"
#: Where a folder is made.
_NEW = "new-"


class Folders:
    """The folders of one node, below ``root``, each named by the content of its model.

    ``is_used`` says whether a process uses a folder. Folders that none uses stay until their room is needed.
    """

    def __init__(self, root: Path, socket: Path, is_used: Callable[[str], bool]) -> None:
        self._root, self._is_used = root, is_used
        root.mkdir(exist_ok=True, mode=0o700)
        self._lock = open(root / _LOCK, "a+b", buffering=0)
        # The former agent of this node has ended, or ends.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._lock.truncate(0)
        self._lock.write(os.fsencode(socket))
        for left in root.glob(f"{_NEW}*"):
            shutil.rmtree(left, ignore_errors=True)

    def find(self, content: str) -> Optional[Path]:
        """The folder of a content."""
        folder = self._root / content
        return folder if folder.is_dir() else None

    def use(self, content: str) -> None:
        """A process asks for a folder."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._root / content)

    @contextlib.contextmanager
    def new(self, content: str, nbytes: int, what: str) -> Iterator[Path]:
        """A block that makes the folder of a content, of so many bytes, in the folder that it gets. It is removed if the block
        fails.

        Raises :class:`OverBudgetError` if folders that are used leave no room for it.
        """
        self._make_room(nbytes, what)
        folder = self._root / f"{_NEW}{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        try:
            yield folder
            folder.rename(self._root / content)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def contents(self) -> List[str]:
        """The contents that have a folder, the one that was used last at the end."""
        found = []
        for folder in self._root.iterdir():
            if folder.name != _LOCK and not folder.name.startswith(_NEW):
                with contextlib.suppress(FileNotFoundError):
                    found.append((folder.stat().st_mtime_ns, folder.name))
        return [name for _, name in sorted(found)]

    def _make_room(self, nbytes: int, what: str) -> None:
        """Removes folders that none uses, the one that was used longest ago first."""
        used = _bytes_in(self._root)
        limit = int((shutil.disk_usage(self._root).free + used) * DISK_SHARE)
        for content in self.contents():
            if used + nbytes <= limit:
                return
            if not self._is_used(content):
                folder = self._root / content
                size = _bytes_in(folder)
                shutil.rmtree(folder, ignore_errors=True)
                used -= size
        if used + nbytes > limit:
            raise OverBudgetError(
                f"{what}: {nbytes} bytes do not fit: models of other nodes may have {limit} bytes of the disk at "
                f"{self._root}, and those in use have {used}: end the programs that use them, or free disk space",
                field=what,
            )


def remove_ended(parent: Path, own: Path, answers: Callable[[Path], bool]) -> None:
    """Removes the folders of ended nodes: no agent has their lock, and no daemon answers at their socket."""
    for root in parent.glob("ray-*"):
        if root == own:
            continue
        with contextlib.suppress(OSError), open(root / _LOCK, "rb", buffering=0) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket = lock.read()
            if socket and not answers(Path(os.fsdecode(socket))):
                shutil.rmtree(root, ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(at, name)).st_size
    return total
