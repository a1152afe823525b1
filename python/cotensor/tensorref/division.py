"""Divides the operations of a program among several devices."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Sequence, Tuple

from .._native import divide_operations
from .gathering import Kept
from .mover import Mover
from .weights import Weight

#: An operation: its name, and the numbers of its weights.
Key = Tuple[str, Tuple[int, ...]]

_Expected = Tuple[str, List[int], bool, List[int], List[int]]

#: Earlier places of an operation that are tried as the end of the last period.
_PLACES_MAX = 8
#: A program whose operations recur this often without a period is divided in the order of their first use.
_PASSES = 4
#: Operations of a recording, at most.
_RECORDED_MAX = 1 << 16
#: What a device does while another one runs a group of operations.
_ELSEWHERE = "elsewhere"


class Division:
    """The device of each operation.

    Operations run on the first device that has room for their weights until they repeat. Then the period is divided into
    groups by the room and the link of each device (``cotensor_placement::divide``). An operation that is not part of the
    period runs where most of its weights are used, and the period is divided again when there are many of them.
    """

    def __init__(self, movers: Sequence[Mover]) -> None:
        self.movers = list(movers)
        #: The device of the last operation.
        self.current = self.movers[0]
        #: Copies of results that operations of another device use.
        self.kept = Kept()
        #: The device of each known operation, and that of each weight.
        self.places: Dict[Key, int] = {}
        self._weights: Dict[int, int] = {}
        #: The operations of a period, in order, and the one that is expected.
        self.period: List[Key] = []
        self._next = 0
        self._steps: Dict[Key, int] = {}
        self._recorded: List[Key] = []
        self._at: Dict[Key, List[int]] = {}
        #: The last time of each operation, in nanoseconds, in the order of their first use.
        self._times: Dict[Key, int] = {}
        #: When each device that is not the current one began to wait.
        self._waiting: Dict[int, int] = {}

    def begin(self, name: str, weights: Sequence[Weight], named: Optional[Mover] = None) -> Mover:
        """An operation begins. Returns the mover of its device: ``named`` if there is one."""
        key = (name, tuple([weight.number for weight in weights]))
        place = self.places.get(key)
        if place is None:
            place = self._place(weights)
        elif self.period:
            step = self._next if self.period[self._next] == key else self._steps[key]
            self._next = (step + 1) % len(self.period)
        place = place if named is None else self.movers.index(named)
        self._change(place)
        return self.movers[place]

    def end(self, name: str, weights: Sequence[Weight], elapsed_ns: int) -> None:
        """The operation has ended, after ``elapsed_ns``."""
        key = (name, tuple([weight.number for weight in weights]))
        self._times[key] = elapsed_ns
        if key in self.places:
            return
        if self.period:
            # Other operations: of another phase, or chosen by data.
            if len(self._times) >= 2 * len(self.places):
                self.divide(list(self._times))
            return
        at, last = self._at.setdefault(key, []), len(self._recorded)
        at.append(last)
        self._recorded.append(key)
        for start in reversed(at[-1 - _PLACES_MAX : -1]):
            length = last - start
            if self._recorded[start + 1 - length : start + 1] == self._recorded[start + 1 :] and start + 1 >= length:
                self.divide(self._recorded[start + 1 :])
                return
        if len(at) >= _PASSES or last + 1 >= _RECORDED_MAX:
            self.divide(list(self._times))

    def divide(self, period: Sequence[Key], times: Optional[Sequence[int]] = None) -> None:
        """Divides ``period``, which begins with the next operation, and announces each device its part."""
        times = [self._times[key] for key in period] if times is None else times
        weights = self.movers[0].weights.all
        sizes = [weight.size_bytes for weight in weights]
        devices = [(mover.driver.budget, mover.bandwidth) for mover in self.movers]
        found = divide_operations(sizes, [(key[1], elapsed) for key, elapsed in zip(period, times)], devices)
        self.period, self.places, self._weights = list(period), {}, {}
        self._next, self._steps = 0, {}
        self._recorded, self._at = [], {}
        for step, (key, place) in enumerate(zip(period, found)):
            self.places.setdefault(key, place)
            self._steps.setdefault(key, step)
            for number in key[1]:
                self._weights.setdefault(number, place)
        for number in range(len(self.movers)):
            self._announce(number, times)

    def forecast(self, count: int) -> List[_Expected]:
        """The next operations, as far as the devices know their parts of the period."""
        found: List[_Expected] = []
        if self.period:
            # Each operation on a device follows at most one that runs elsewhere.
            known = [iter(mover.driver.forecast(2 * count)) for mover in self.movers]
            for step in range(self._next, self._next + count):
                place = self.places[self.period[step % len(self.period)]]
                expected = next((one for one in known[place] if one[0] != _ELSEWHERE), None)
                if expected is None:
                    break
                found.append(expected)
        return found

    def _announce(self, number: int, times: Sequence[int]) -> None:
        """Announces device ``number`` its operations; a group on other devices is one operation without weights."""
        mover, part = self.movers[number], []  # type: Mover, List[Tuple[int, int]]
        waited = 0
        for key, elapsed in zip(self.period, times):
            if self.places[key] != number:
                waited += elapsed
                continue
            if waited:
                part.append((mover.operation(_ELSEWHERE, []), waited))
                waited = 0
            part.append((mover.operation(key[0], [mover.weights.all[use] for use in key[1]]), elapsed))
        if part:
            if waited:
                part.append((mover.operation(_ELSEWHERE, []), waited))
            mover.driver.announce(part)

    def _place(self, weights: Sequence[Weight]) -> int:
        """The device of an operation that the period does not have."""
        need = sum([weight.size_bytes for weight in weights])
        fitting = [number for number, mover in enumerate(self.movers) if need <= mover.driver.budget]
        if not fitting:
            return self.movers.index(self.current)
        given = {number: 0 for number in fitting}
        for weight in weights:
            place = self._weights.get(weight.number)
            if place in given:
                given[place] += weight.size_bytes
        return max(given, key=lambda number: given[number])

    def _change(self, place: int) -> None:
        """The program changes its device: the one that it leaves copies ahead, as long as others run."""
        mover = self.movers[place]
        if mover is self.current:
            return
        now = time.perf_counter_ns()
        began = self._waiting.pop(place, None)
        if began is not None:
            mover.end(max(now - began, 1))
        left = self.current
        self.current = mover
        if self.period and left.begin(_ELSEWHERE, []):
            self._waiting[self.movers.index(left)] = now
            left.running()
