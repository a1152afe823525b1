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

    def data(self) -> Any:
        """The buffer of all bytes, which keeps their memory."""
        ...


class Whole:
    """A tensor, or any buffer of bytes."""

    def __init__(self, data: Any) -> None:
        self._data = data
        with memoryview(data) as view:
            self._size = view.nbytes

    @property
    def size(self) -> int:
        """The number of all bytes."""
        return self._size

    def wait(self, offset: int, timeout: float) -> int:
        """All bytes are here."""
        return self._size

    def data(self) -> Any:
        """The buffer."""
        return self._data


class Arrival:
    """A copy on its way. One thread for each range reports what has come; servers wait for it."""

    def __init__(self) -> None:
        #: Of which life of the tensor's agent it is, and its bytes, once they are known.
        self.life: Optional[str] = None
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

    def reader(self, life: str) -> Readable:
        """What a server reads for a node that expects this life of the tensor's agent."""
        return _Reader(self, life)

    def wait(self, offset: int, timeout: float) -> int:
        """See :class:`Readable`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._end(offset) > offset, timeout)
            end = self._end(offset)
            if end == offset and self._is_over:
                raise NotFoundError("the copy has failed")
            return end

    def data(self) -> Any:
        """The memory."""
        assert self._data is not None
        return self._data

    def _end(self, offset: int) -> int:
        end = offset
        for (start, _), known in zip(self._ranges, self._known):
            if start <= end < known:
                end = known
        return end


class _Reader:
    def __init__(self, arrival: Arrival, life: str) -> None:
        self._arrival, self._life = arrival, life

    @property
    def size(self) -> Optional[int]:
        return self._arrival.size

    def wait(self, offset: int, timeout: float) -> int:
        end = self._arrival.wait(offset, timeout)
        if self._arrival.life not in (None, self._life):
            raise NotFoundError("it is a copy of another tensor")
        return end

    def data(self) -> Any:
        return self._arrival.data()
