"""Rules for calls between nodes: which node is called, which is silent, and whose calls end. No Ray, sockets or clocks."""

from __future__ import annotations

import threading
from typing import Callable, Dict, List, NamedTuple, Optional

#: The functions of the agents themselves, which stay on their nodes.
OWN_PREFIX = "cotensor.ray."
#: The time between two signs of life that the caller asks for, and gives, in seconds.
PULSE_INTERVAL = 1.0
#: A node that does not answer for so long has ended, or cannot be reached.
NODE_SILENT_MAX = 4.5
#: A caller that gives no sign of life for so long has ended. Its calls are cancelled.
CALLER_SILENT_MAX = 10.0
#: How long a cancellation waits for its call, which may wait for a thread.
CANCELLATION_KEPT = 600.0


def is_found_elsewhere(name: str) -> bool:
    """Whether other nodes find a function of this name."""
    return not name.startswith(OWN_PREFIX)


class Pulse:
    """A caller's view of the node that runs its call."""

    def __init__(self, now: float) -> None:
        #: When it was asked, if it has not answered.
        self._asked: Optional[float] = None
        self._heard = now

    def is_due(self, now: float) -> bool:
        """Whether to ask for a sign of life, unless an answer is awaited."""
        return self._asked is not None or now - self._heard >= PULSE_INTERVAL

    def asked(self, now: float) -> None:
        """The node was asked, also again."""
        self._asked = now if self._asked is None else self._asked

    def answered(self, now: float) -> None:
        """The node has answered."""
        self._asked, self._heard = None, now

    def is_silent(self, now: float) -> bool:
        """Whether the node has ended, or cannot be reached."""
        return self._asked is not None and now - self._asked >= NODE_SILENT_MAX - PULSE_INTERVAL


class _Call(NamedTuple):
    cancel: Callable[[], object]
    function: str


class Calls:
    """The calls of other nodes that run here. A call ends with its caller's interest in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Dict[str, _Call] = {}
        self._heard: Dict[str, float] = {}
        #: Cancelled before they began.
        self._cancelled: Dict[str, float] = {}

    def begin(self, call: str, function: str, cancel: Callable[[], object], now: float) -> None:
        """A call begins. ``cancel`` is called at once if the call was cancelled before."""
        with self._lock:
            is_cancelled = self._cancelled.pop(call, None) is not None
            self._running[call], self._heard[call] = _Call(cancel, function), now
        if is_cancelled:
            cancel()

    def end(self, call: str) -> None:
        """A call has ended."""
        with self._lock:
            self._running.pop(call, None)
            self._heard.pop(call, None)

    def hear(self, call: str, now: float) -> None:
        """A sign of life of a call's caller."""
        with self._lock:
            if call in self._running:
                self._heard[call] = now

    def cancel(self, call: str, now: float) -> None:
        """Cancels a call, also one that has not begun."""
        with self._lock:
            found = self._running.get(call)
            if found is None:
                self._cancelled[call] = now
        if found is not None:
            found.cancel()

    def cancel_silent(self, now: float) -> None:
        """Cancels the calls of silent callers."""
        with self._lock:
            silent = [self._running[call] for call, heard in self._heard.items() if now - heard >= CALLER_SILENT_MAX]
            self._cancelled = {call: at for call, at in self._cancelled.items() if now - at < CANCELLATION_KEPT}
        for found in silent:
            found.cancel()

    def running(self) -> List[str]:
        """The functions of the calls."""
        with self._lock:
            return sorted(call.function for call in self._running.values())
