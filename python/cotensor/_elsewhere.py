"""Finds names that another daemon has, for functions that take a store."""

from __future__ import annotations

from typing import Callable, Optional

from ._native import Store, Tensor
from .errors import NotFoundError

#: Brings a name to a store that lacks it, and returns whether it could. :mod:`cotensor.ray` sets it.
bring: Optional[Callable[[Store, str], bool]] = None


def get(store: Store, name: str) -> Tensor:
    """The newest version of a name, as :meth:`Store.get` returns it. Other daemons are asked if the store lacks it."""
    try:
        return store.get(name)
    except NotFoundError:
        if bring is None or not bring(store, name):
            raise
    return store.get(name)
