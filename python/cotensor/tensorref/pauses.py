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
        self._lock = threading.RLock()

    def begin(self, thread: int, frame: Optional[types.FrameType]) -> None:
        """Pauses a thread while ``frame`` is among its callers; None: for good."""
        with self._lock:
            self._forget_ended()
            self.frames[thread] = frame

    def _forget_ended(self) -> None:
        """Forgets frames that have ended without :meth:`end`: each keeps the arguments of a step. Their threads may have ended,
        too, or call no function of the session."""
        held = list(self.frames.items())
        # After those, so that it has the callers of each frame that has not ended.
        running = sys._current_frames() if held else {}
        for thread, frame in held:
            if frame is not None and self.frames.get(thread) is frame and not _has_caller(running.get(thread), frame):
                self.frames.pop(thread, None)
        # It has the frame of this call, which would keep those that have ended.
        running.clear()

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
        if _has_caller(sys._getframe(), frame):
            return True
        self.frames.pop(thread, None)
        return False


def _has_caller(frame: Optional[types.FrameType], caller: types.FrameType) -> bool:
    """Whether a frame is another one, or that is among its callers."""
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is not None
