"""Weights of the store whose pages the driver has locked: they are copied to a device without a buffer.

All processes lock the same pages: those of the sealed memory, by a shared read-only mapping. A driver that locks pages of a
private mapping, such as the one that a program sees, gets copies of them, and does not come to an end where the pages are huge.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any, Dict, Optional, Tuple

import torch

from .._native import Tensor, shared_pages

#: Flags of ``cudaHostRegister``: for all devices of the process, and read-only.
_PORTABLE, _READ_ONLY = 1, 8


class _Pages:
    """The bytes of one tensor of the store, which keep its mapping."""

    def __init__(self, tensor: Tensor, start: int, size_bytes: int) -> None:
        self.tensor, self.start, self.size_bytes = tensor, start, size_bytes
        #: How many sessions use the lock.
        self.users = 0

    def part(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """The shared memory of a flat tensor of the program. It must not be written."""
        buffer = (ctypes.c_char * like.nbytes).from_address(self.start + offset)
        return torch.frombuffer(buffer, dtype=like.dtype)


#: The locked pages of this process by their address. A driver locks pages once, for all sessions and devices.
_locked: Dict[int, _Pages] = {}
_guard = threading.Lock()


class PageLocks:
    """The page-locked weights of one session. ``runtime`` has ``cudaHostRegister`` and ``cudaHostUnregister``."""

    def __init__(self, runtime: Any, device: torch.device) -> None:
        self._runtime = runtime
        self._device = device
        self._used: Dict[int, _Pages] = {}
        #: Addresses that the driver refused.
        self._refused: Dict[int, _Pages] = {}
        #: By id of a source: the source, the state in which it was found, and its shared memory.
        self._found: Dict[int, Tuple["weakref.ref[torch.Tensor]", int, Optional[torch.Tensor]]] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors whose pages are locked."""
        return sum([pages.size_bytes for pages in self._used.values()])

    def shared(self, source: torch.Tensor, state: int) -> Optional[torch.Tensor]:
        """The page-locked memory with the elements of ``source``, a flat tensor of the host. None if it has none.

        ``state`` changes when the program writes ``source``; its pages are its own then.
        """
        found = self._found.get(id(source))
        if found is None or found[0]() is not source or found[1] != state:
            found = self._found[id(source)] = weakref.ref(source), state, self._find(source)
        return found[2]

    def forget(self) -> None:
        """The program may have written weights unseen."""
        self._found.clear()

    def close(self) -> None:
        """Unlocks all pages, which no copy uses any more."""
        self._found.clear()
        self._refused.clear()
        with _guard:
            for start, pages in self._used.items():
                pages.users -= 1
                if not pages.users:
                    self._runtime.cudaHostUnregister(start)
                    del _locked[start]
            self._used.clear()

    def _find(self, source: torch.Tensor) -> Optional[torch.Tensor]:
        found = shared_pages(source.data_ptr(), source.nbytes)
        if found is None:
            return None
        tensor, start, size_bytes, offset = found
        with _guard:
            pages = self._used.get(start)
            if pages is None:
                pages = self._lock(tensor, start, size_bytes)
        return None if pages is None else pages.part(offset, source)

    def _lock(self, tensor: Tensor, start: int, size_bytes: int) -> Optional[_Pages]:
        if start in self._refused:
            return None
        pages = _locked.get(start)
        if pages is None:
            pages = _Pages(tensor, start, size_bytes)
            # In exact size.
            if int(self._runtime.cudaHostRegister(start, size_bytes, _PORTABLE | _READ_ONLY)):
                self._refused[start] = pages
                self._clear_error()
                return None
            _locked[start] = pages
        pages.users += 1
        self._used[start] = pages
        return pages

    def _clear_error(self) -> None:
        """CUDA keeps the last error, and PyTorch raises it after its next operation, whose result is not used."""
        try:
            torch.zeros(1, device=self._device).add_(1)
        except RuntimeError:
            pass
