"""The sample of CI of the tests that run with each strategy."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
from sampling import chosen, sample


class Item(SimpleNamespace):
    """What the sample reads of a test of pytest."""

    __hash__ = object.__hash__


STRATEGIES = ["flow", "genoa", "lru", "cpu"]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("values", [2, 3, 4, 8])
def test_each_case_has_one_strategy_and_each_value_all_of_them(values, first):
    cases = list(product(range(12), range(values), STRATEGIES))
    found = [cases[number] for number in chosen([(case[:2], case[2]) for case in cases], first)]
    assert sorted(case[:2] for case in found) == sorted(product(range(12), range(values)))
    assert {case[1:] for case in found} == set(product(range(values), STRATEGIES))


@pytest.mark.parametrize("first", range(4))
def test_two_strategies_are_chosen_of_a_test_without_other_parameters(first):
    cases = [((), strategy) for strategy in STRATEGIES]
    assert chosen(cases, first) == {first, (first + 1) % 4}
    assert chosen(cases[:2], first) == {0, 1} and chosen(cases[:1], first) == {0}


def test_tests_without_a_strategy_and_without_offloading_are_kept():
    def item(name, **parameters):
        identity = "-".join(map(str, parameters.values()))
        return Item(nodeid=f"file.py::{name}[{identity}]", originalname=name, callspec=SimpleNamespace(params=parameters))

    items = [
        Item(nodeid="file.py::plain", originalname="plain"),
        *[item("other", room=room) for room in (1, 2)],
        *[item("one", strategy=strategy) for strategy in [None, *STRATEGIES]],
        *[item("two", room=room, strategy=strategy) for room, strategy in product((1, 2), STRATEGIES)],
    ]
    kept, left = map(lambda found: [one.nodeid[9:] for one in found], sample(items))
    assert kept == ["plain", "other[1]", "other[2]", "one[None]", "one[flow]", "one[genoa]", "two[1-genoa]", "two[2-lru]"]
    assert len(kept) + len(left) == len(items)
