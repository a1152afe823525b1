"""Threads whose functions a session does not intercept for a time."""

from __future__ import annotations

import sys
import threading
import types
from typing import Dict, Optional


class Pauses:
    """Threads whose functions run as they are: while a frame is among their callers, or for good."""

    def __init__(self) -> None:
        #: By thread; None: for good.
        self.frames: Dict[int, Optional[types.FrameType]] = {}

    def begin(self, thread: int, frame: Optional[types.FrameType]) -> None:
        """Pauses a thread while ``frame`` is among its callers; None: for good."""
        self.frames[thread] = frame

    def end(self, thread: int) -> Optional[types.FrameType]:
        """Ends the pause of a thread. Returns its frame."""
        return self.frames.pop(thread, None)

    def clear(self) -> None:
        """Ends all pauses."""
        self.frames.clear()

    def is_paused(self) -> bool:
        """Whether functions of this thread run as they are. PyTorch does not report the end of a step that fails."""
        thread = threading.get_ident()
        frame = self.frames.get(thread)
        if frame is None:
            return thread in self.frames
        caller: Optional[types.FrameType] = sys._getframe()
        while caller is not None and caller is not frame:
            caller = caller.f_back
        if caller is None:
            del self.frames[thread]
        return caller is not None
