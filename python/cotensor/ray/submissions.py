"""Keeps references while a task with them is submitted.

Ray counts a reference that an argument contains from the submission on, and relies until then on a Python object of the program.
A token that a serializer adds to an argument has no such object. (Ray 2.60; a test fails without this.)
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, List, Optional, Set, Tuple

#: The modules whose functions submit tasks.
_SUBMITTING = ("ray.actor", "ray.remote_function")
#: The time between two looks at the submissions, in seconds.
_INTERVAL = 0.1

_lock = threading.Lock()
#: The thread, the function's frame and the reference.
_kept: List[Tuple[int, FrameType, Any]] = []


def keep_while_submitted(reference: Any) -> None:
    """Keeps the reference until the submission that this thread is writing an argument of is over. Does nothing otherwise."""
    frame = _submission()
    if frame is None:
        return
    with _lock:
        if not _kept:
            # First: without the thread, all later references would stay.
            threading.Thread(target=_watch, name="submissions", daemon=True).start()
        _kept.append((threading.get_ident(), frame, reference))


def _submission() -> Optional[FrameType]:
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") not in _SUBMITTING:
        frame = frame.f_back
    return frame


def _watch() -> None:
    pause = threading.Event()
    while True:
        pause.wait(_INTERVAL)
        with _lock:
            known = list(_kept)
        # Afterwards: what is running now, and was not then, is not looked at.
        running = _frames()
        with _lock:
            # The list has the frames, so that no other one has the same address.
            over = {id(one) for one in known if (one[0], id(one[1])) not in running}
            _kept[:] = [one for one in _kept if id(one) not in over]
            if not _kept:
                return


def _frames() -> Set[Tuple[int, int]]:
    """The threads and the addresses of the frames of all functions that run."""
    running = set()
    for thread, top in sys._current_frames().items():
        frame: Optional[FrameType] = top
        while frame is not None:
            running.add((thread, id(frame)))
            frame = frame.f_back
    return running
