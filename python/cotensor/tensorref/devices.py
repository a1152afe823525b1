"""The devices of a session."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch

from . import threads
from .division import Division
from .mover import Mover


class Devices:
    """The devices of a session, with one mover for each."""

    def __init__(self, movers: Sequence[Mover]) -> None:
        #: One for each device; all have the same weights with the same numbers.
        self.movers: List[Mover] = list(movers)
        #: The device that weights show.
        self.target = self.movers[0].device
        #: One thread at a time moves weights, on all devices.
        self.lock = self.movers[0].lock
        for mover in self.movers:
            mover.lock = self.lock
        #: Whether the thread that has the lock runs the code of several operations.
        self.runs_code = False
        #: Divides operations among several devices; None: there is one.
        self.division = Division(self.movers) if len(self.movers) > 1 else None

    def mover_of(self, device: torch.device) -> Mover:
        """The mover of one of the devices."""
        return next((mover for mover in self.movers if mover.device == device), self.movers[0])

    def named(self, device: Any) -> Optional[torch.device]:
        """The device of this session that a program names, if it is one."""
        if device is None:
            return None
        named = torch.device(self.target.type, device) if isinstance(device, int) else torch.device(device)
        if named.type == self.target.type and named.index is None:
            return self.target
        return next((mover.device for mover in self.movers if mover.device == named), None)

    def everywhere(self) -> List[Mover]:
        """The movers of this session, and of all others that some thread is in."""
        others = [session.devices.movers for session in threads.everywhere() if session.devices is not self]
        return [*self.movers, *[mover for movers in others for mover in movers]]

    def free(self, mover: Mover) -> None:
        """A device had no memory: frees what operations do not need now, also of other sessions that do nothing."""
        if self.division is not None:
            self.division.kept.clear()
        mover.no_memory()
        for session in threads.everywhere():
            other = session.devices
            if other is not self and other.lock.acquire(blocking=False):
                try:
                    for one in other.movers:
                        if one.device == mover.device:
                            one.no_memory()
                finally:
                    other.lock.release()

    def free_all(self, device: Optional[torch.device]) -> None:
        """:meth:`free` for one device, or for all."""
        with self.lock:
            for mover in self.movers:
                if device is None or mover.device == device:
                    self.free(mover)

    def end(self) -> None:
        """The session ends: frees all copies, and makes no others for threads that still run operations."""
        with self.lock:
            for mover in self.movers:
                mover.has_ended = True
            self.drop_all()

    def drop_all(self) -> None:
        """Frees all copies."""
        with self.lock:
            for mover in self.movers:
                mover.drop_all()
            if self.division is not None:
                self.division.kept.clear()
