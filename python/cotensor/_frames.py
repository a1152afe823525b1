"""Frames of a channel for asyncio."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import ChannelReader, Frame


class AsyncFrames:
    """The asynchronous iterator of a :class:`ChannelReader`. The event loop waits for the reader's descriptor."""

    def __init__(self, reader: "ChannelReader") -> None:
        self._reader = reader

    def __aiter__(self) -> "AsyncFrames":
        return self

    async def __anext__(self) -> "Frame":
        reader, descriptor = self._reader, self._reader.fileno()
        while True:
            _clear(descriptor)
            # Before the next frame is taken: the producer may publish its last one in between.
            ended: "BaseException | bool" = False
            try:
                ended = not reader.is_open()
            except Exception as error:
                ended = error
            frame = reader.try_get()
            if frame is not None:
                return frame
            if isinstance(ended, BaseException):
                raise ended
            if ended:
                raise StopAsyncIteration
            await _readable(descriptor)


def _clear(descriptor: int) -> None:
    try:
        os.read(descriptor, 8)
    except BlockingIOError:
        pass


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, set_ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
