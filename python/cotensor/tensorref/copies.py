"""Copies of weights to a device: in the order of the calls, or on a stream of their own beside the operations."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from .page_locks import PageLocks

#: Bytes of each of the two buffers through which copies on a stream go.
_STAGED_BYTES = 32 << 20


class Landing:
    """A copy on its way: the event of its end, and the streams that wait for it."""

    __slots__ = ("event", "streams")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.streams: List[Any] = []


class Copies:
    """Copies of a device that copies and computes in the order of the calls, such as the simulated one."""

    #: Bytes that were copied by way of buffers.
    staged_bytes = 0

    @property
    def locked_bytes(self) -> int:
        """Bytes of the store's tensors whose pages are locked for copies without a buffer."""
        return 0

    def fetch(
        self, source: torch.Tensor, device: torch.device, state: Optional[int] = None
    ) -> "tuple[torch.Tensor, Optional[Landing]]":
        """A copy of ``source``, which is contiguous and on the host. Operations wait for its landing by :meth:`use`.

        ``state`` changes when ``source`` is written; None: it may be written unseen.
        """
        copy = torch.empty(source.numel(), dtype=source.dtype, device=device)
        copy.copy_(source, non_blocking=True)
        return copy, None

    def use(self, copy: torch.Tensor, landing: Optional[Landing]) -> None:
        """The next operation of this thread uses a copy."""

    def forget(self) -> None:
        """Sources may have been written unseen."""

    def close(self) -> None:
        """Waits for all copies and frees what they used."""


class StreamCopies(Copies):
    """Copies on a stream of their own, for CUDA and devices with its interface: from the locked pages of the store, or by way of
    page-locked buffers.

    The copy's memory belongs to the copy stream. The stream of an operation waits for the event of the copy, and is recorded for
    the memory: PyTorch then gives the memory to a later copy only after the operation.
    """

    def __init__(self, device: torch.device, module: Any) -> None:
        self.device = device
        self.module = module
        self.stream = module.Stream(device=device)
        #: Buffers with the event after which they may be written.
        self._buffers: List[List[Any]] = []
        self._locks = PageLocks(module.cudart(), device)

    @property
    def locked_bytes(self) -> int:
        return self._locks.size_bytes

    def fetch(
        self, source: torch.Tensor, device: torch.device, state: Optional[int] = None
    ) -> "tuple[torch.Tensor, Optional[Landing]]":
        locked = None if state is None else self._locks.shared(source, state)
        with self.module.stream(self.stream):
            copy = torch.empty(source.numel(), dtype=source.dtype, device=device)
            if locked is not None:
                # Sealed: no process writes it while it is copied.
                copy.copy_(locked, non_blocking=True)
                return copy, Landing(self.stream.record_event())
            self.staged_bytes += source.nbytes
            step = _STAGED_BYTES // source.element_size()
            for start in range(0, source.numel(), step):
                part = source[start : start + step]
                buffer = self._buffer()
                staged = buffer[0][: part.nbytes].view(part.dtype)
                # The host may write the weight from here on.
                staged.copy_(part)
                copy[start : start + step].copy_(staged, non_blocking=True)
                buffer[1] = self.stream.record_event()
            return copy, Landing(self.stream.record_event())

    def use(self, copy: torch.Tensor, landing: Optional[Landing]) -> None:
        stream = self.module.current_stream(self.device)
        if landing is not None and stream not in landing.streams:
            landing.streams.append(stream)
            stream.wait_event(landing.event)
            self.record(copy, stream)

    def forget(self) -> None:
        self._locks.forget()

    def close(self) -> None:
        self.stream.synchronize()
        self._locks.close()

    def record(self, copy: torch.Tensor, stream: Any) -> None:
        """``stream`` uses the memory of ``copy``."""
        copy.record_stream(stream)

    def allocate(self) -> torch.Tensor:
        """A page-locked buffer."""
        return torch.empty(_STAGED_BYTES, dtype=torch.uint8, pin_memory=True)

    def _buffer(self) -> List[Any]:
        if len(self._buffers) < 2:
            self._buffers.append([self.allocate(), None])
            return self._buffers[-1]
        # The older one.
        self._buffers.reverse()
        buffer = self._buffers[-1]
        buffer[1].synchronize()
        return buffer


def copies_of(device: torch.device, module: Any) -> Copies:
    """How weights are copied to a device."""
    return StreamCopies(device, module) if device.type == "cuda" else Copies()
