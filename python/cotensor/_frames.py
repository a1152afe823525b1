"""Frames of a channel for asyncio."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._native import ChannelReader, Frame

ONE = (1).to_bytes(8, sys.byteorder)


class AsyncFrames:
    """The asynchronous iterator of a :class:`ChannelReader`. The event loop waits for the reader's descriptor.

    Several tasks may share a reader: each frame goes to one of them."""

    def __init__(self, reader: "ChannelReader") -> None:
        self._reader = reader

    def __aiter__(self) -> "AsyncFrames":
        return self

    async def __anext__(self) -> "Frame":
        # Frames that are always there leave other tasks their turn.
        await asyncio.sleep(0)
        while True:
            frame = self._reader.try_get()
            if frame is not None:
                return frame
            # Another task may have closed the reader during the wait: this descriptor is one of now.
            descriptor = self._reader.fileno()
            _clear(descriptor)
            cleared = True
            try:
                frame = self._next_or_end()
                if frame is not None:
                    return frame
                cleared = False
            finally:
                if cleared:
                    # Other tasks wait for what is left.
                    _signal(descriptor)
            await _readable(descriptor)

    def _next_or_end(self) -> "Optional[Frame]":
        try:
            ended: "Optional[BaseException]" = None if self._reader.is_open() else StopAsyncIteration()
        except Exception as error:
            ended = error
        # Afterwards: the producer may have published its last frame in between.
        frame = self._reader.try_get()
        if frame is None and ended is not None:
            raise ended
        return frame


def _clear(descriptor: int) -> None:
    try:
        os.read(descriptor, 8)
    except BlockingIOError:
        pass


def _signal(descriptor: int) -> None:
    try:
        os.write(descriptor, ONE)
    except BlockingIOError:
        pass


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    # A duplicate: a loop has one callback for each descriptor, and the reader may be closed meanwhile.
    own = os.dup(descriptor)
    try:
        loop.add_reader(own, set_ready)
        try:
            await ready
        finally:
            loop.remove_reader(own)
    finally:
        os.close(own)
