"""What happened when: as a trace for Perfetto, and as a plot."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any, Deque, Dict, List, Tuple, Union

from .events import Middleware, Move, Operation

#: Events that are kept; older ones are dropped.
_EVENTS_MAX = 200_000
_WIDTH, _HEIGHT, _MARGIN = 900, 240, 40


class Timeline(Middleware):
    """Records operations, moves and the bytes of weights on the device. Add it to a session::

        timeline = Timeline()
        session.use(timeline)
        ...
        timeline.save("timeline.json")                      # open it in ui.perfetto.dev or chrome://tracing
        timeline.plot("residency.svg")
    """

    def __init__(self) -> None:
        self._began = time.perf_counter_ns()
        self._events: Deque[Dict[str, Any]] = deque(maxlen=_EVENTS_MAX)
        self._bytes: Deque[Tuple[float, int]] = deque(maxlen=_EVENTS_MAX)
        self._sizes: Dict[Tuple[str, str], int] = {}
        self._used = 0
        self._moving = 0.0

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self._began) / 1000

    def after_operation(self, operation: Operation, place: str, elapsed_ns: int) -> None:
        """Records an operation."""
        end = self._now_us()
        thread = 1 if place == "device" else 2
        self._add(operation.name, "X", end - elapsed_ns / 1000, tid=thread, dur=elapsed_ns / 1000, args={"uses": operation.uses})

    def before_move(self, move: Move) -> bool:
        """Notes the time."""
        self._moving = self._now_us()
        return True

    def after_move(self, move: Move) -> None:
        """Records a move."""
        now = self._now_us()
        self._used -= self._sizes.pop((move.device, move.tensor), 0)
        if move.to_device:
            self._used += move.size_bytes
            self._sizes[move.device, move.tensor] = move.size_bytes
        name = f"{'copy' if move.to_device else 'free'} {move.tensor}"
        fields = {"size_bytes": move.size_bytes, "device": move.device}
        self._add(name, "X", self._moving, tid=3, dur=max(now - self._moving, 0), args=fields)
        self._add("weights on the device", "C", now, args={"bytes": self._used})
        self._bytes.append((now, self._used))

    def _add(self, name: str, phase: str, at: float, **fields: Any) -> None:
        self._events.append({"name": name, "ph": phase, "ts": round(at, 3), "pid": 1, **fields})

    def residency(self) -> List[Tuple[float, int]]:
        """Times in microseconds, and the bytes of weights on the device from then on."""
        return list(self._bytes)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes Chrome's trace format, which Perfetto reads."""
        threads = {1: "device", 2: "host", 3: "moves"}
        names = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
            for thread, name in threads.items()
        ]
        with open(path, "w") as file:
            json.dump({"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"}, file)

    def plot(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes a chart of the bytes of weights on the device over time, as SVG."""
        points = self.residency() or [(0.0, 0)]
        end, most = max(points[-1][0], 1e-3), max(max([size for _, size in points]), 1)

        def place(at: float, size: int) -> str:
            return f"{_MARGIN + at / end * _WIDTH:.1f},{_MARGIN + (1 - size / most) * _HEIGHT:.1f}"

        line = [place(0, 0)]
        before = 0
        for at, size in points:
            line += [place(at, before), place(at, size)]
            before = size
        bottom = _MARGIN + _HEIGHT
        with open(path, "w") as file:
            file.write(
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _MARGIN} {_HEIGHT + 2 * _MARGIN}" '
                f'font-family="sans-serif" font-size="12">'
                f'<polyline fill="none" stroke="#2563eb" stroke-width="1.5" points="{" ".join(line)}"/>'
                f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_MARGIN + _WIDTH}" fill="none" stroke="#888"/>'
                f'<text x="{_MARGIN}" y="{_MARGIN - 10}">weights on the device, at most {most} bytes</text>'
                f'<text x="{_MARGIN + _WIDTH}" y="{bottom + 20}" text-anchor="end">{end / 1000:.1f} ms</text></svg>\n'
            )
