"""Bytes of a tensor for other nodes: those of a whole one, and those of a copy that is still on its way."""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any, List, Optional, Protocol, Tuple

from ..errors import NotFoundError

#: A copy announces its bytes to the nodes that wait for them in steps of this size.
PART_BYTES = 512 << 10

#: The start and end of a part of a tensor.
Range = Tuple[int, int]


class Readable(Protocol):
    """What a server reads."""

    @property
    def size(self) -> Optional[int]:
        """The number of all bytes, None while it is not known."""
        ...

    def wait(self, offset: int, timeout: float) -> int:
        """The end of the bytes that are here from ``offset`` on: ``offset`` itself when none come in time.

        Raises :class:`NotFoundError` when they do not come any more.
        """
        ...

    def part(self, start: int, end: int) -> memoryview:
        """The bytes from ``start`` to ``end``, which keep their memory. Raises :class:`EOFError` if they are not here."""
        ...


class Whole:
    """A tensor, or any buffer of bytes."""

    def __init__(self, data: Any) -> None:
        self._view = memoryview(data)

    @property
    def size(self) -> int:
        """The number of all bytes."""
        return len(self._view)

    def wait(self, offset: int, timeout: float) -> int:
        """All bytes are here."""
        return len(self._view)

    def part(self, start: int, end: int) -> memoryview:
        """A part of the buffer."""
        return self._view[start:end]


class Arrival:
    """A copy on its way. One thread for each range reports what has come; servers wait for it."""

    def __init__(self) -> None:
        #: Its bytes, once they are known.
        self.size: Optional[int] = None
        self._changed = threading.Condition()
        self._ranges: List[Range] = []
        #: Up to where each range has arrived, in steps.
        self._known: List[int] = []
        self._data: Optional[mmap.mmap] = None
        self._is_over = False

    def begin(self, fd: int, ranges: List[Range]) -> None:
        """The memory of the copy is here: the file ``fd``. It is opened again for reading, so that it can be sealed."""
        self.size = ranges[-1][1]
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = mmap.mmap(own, self.size, prot=mmap.PROT_READ)
        finally:
            os.close(own)
        with self._changed:
            self._known = [start for start, _ in ranges]
            self._data, self._ranges = data, ranges

    def advance(self, number: int, at: int) -> None:
        """A range has arrived up to ``at``."""
        # One thread writes each entry.
        if not self._ranges or at - self._known[number] < PART_BYTES and at != self._ranges[number][1]:
            return
        with self._changed:
            self._known[number] = at
            self._changed.notify_all()

    def end(self) -> None:
        """No more bytes come: the copy is whole, or has failed. Servers that have all of their bytes go on."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self, offset: int, timeout: float) -> int:
        """See :class:`Readable`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._end(offset) > offset, timeout)
            end = self._end(offset)
            if end == offset and self._is_over:
                raise NotFoundError("the copy has failed")
            return end

    def part(self, start: int, end: int) -> memoryview:
        """See :class:`Readable`."""
        assert self._data is not None
        return memoryview(self._data)[start:end]

    def _end(self, offset: int) -> int:
        end = offset
        for (start, _), known in zip(self._ranges, self._known):
            if start <= end < known:
                end = known
        return end

