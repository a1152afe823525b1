"""The items and values of a store, as those of a dict. Other processes publish and remove names meanwhile."""

from __future__ import annotations

from collections.abc import ItemsView, ValuesView
from itertools import islice
from typing import Any, Iterator, Mapping, Tuple

from ._native import Store, Tensor

#: Names of one round trip.
_GROUP = 512


def _leased(store: Store) -> Iterator[Tuple[str, Tensor]]:
    """The names that exist now, each with its newest version. A name that is removed before its turn is left out."""
    names = iter(store)
    while group := list(islice(names, _GROUP)):
        yield from store.get_many(group, missing_ok=True).items()


class Items(ItemsView[str, Tensor]):
    """``store.items()``."""

    def __iter__(self) -> Iterator[Tuple[str, Tensor]]:
        return _leased(self._mapping)  # type: ignore[attr-defined]

    def __contains__(self, item: object) -> bool:
        raise TypeError("an item is not looked up by its tensor: use `name in store`, and compare the arrays")


class Values(ValuesView[Tensor]):
    """``store.values()``."""

    def __iter__(self) -> Iterator[Tensor]:
        return (tensor for _, tensor in _leased(self._mapping))  # type: ignore[attr-defined]

    def __contains__(self, value: object) -> bool:
        raise TypeError("a tensor is not looked up by its elements: use `name in store`")


def pairs(arrays: Any, named: Mapping[str, Any]) -> "dict[str, Any]":
    """The arguments of ``store.update`` as one dict. A store's names may be removed meanwhile."""
    return dict(arrays.items() if isinstance(arrays, Store) else arrays, **named)
