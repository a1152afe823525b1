"""The sample of CI: tests that run with each strategy of `cotensor.tensorref` run with some of them, in turn."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Hashable, List, Sequence, Set, Tuple
from typing import Counter as Counts

import pytest

#: The parameter that is sampled.
STRATEGY = "strategy"


def chosen(cases: Sequence[Tuple[Tuple[Hashable, ...], str]], first: int = 0) -> Set[int]:
    """The numbers of the cases of one test that the sample has. A case is the values of its other parameters, and a strategy.

    Each combination of the other values keeps one strategy: the one that these values have met least, in turn, beginning with the
    strategy ``first``. A test with one combination keeps two.
    """
    combinations: Dict[Tuple[Hashable, ...], List[int]] = {}
    for number, (others, _) in enumerate(cases):
        combinations.setdefault(others, []).append(number)
    met: Counts[Tuple[int, Hashable, str]] = Counter()
    found = set()
    for turn, (others, numbers) in enumerate(combinations.items()):
        start = (first + turn) % len(numbers)
        numbers = numbers[start:] + numbers[:start]
        if len(combinations) == 1:
            return set(numbers[:2])
        pairs = {number: [(place, value, cases[number][1]) for place, value in enumerate(others)] for number in numbers}
        best = min(numbers, key=lambda number: sum(met[pair] for pair in pairs[number]))
        met.update(pairs[best])
        found.add(best)
    return found


def sample(items: List[pytest.Item]) -> Tuple[List[pytest.Item], List[pytest.Item]]:
    """The tests that the sample has, and the others. A test without a strategy is always among the first."""
    tests: Dict[Tuple[str, str], List[Tuple[pytest.Item, Tuple[Hashable, ...], str]]] = {}
    for item in items:
        parameters: Dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        # Without offloading, a test shows something else.
        if parameters.get(STRATEGY) is not None:
            others = tuple(repr(value) for name, value in sorted(parameters.items()) if name != STRATEGY)
            name = item.originalname  # type: ignore[attr-defined]
            tests.setdefault((item.nodeid.split("::")[0], name), []).append((item, others, parameters[STRATEGY]))
    left = set()
    for first, cases in enumerate(tests.values()):
        numbers = chosen([(others, strategy) for _, others, strategy in cases], first)
        left.update(item for number, (item, _, _) in enumerate(cases) if number not in numbers)
    return [item for item in items if item not in left], [item for item in items if item in left]
