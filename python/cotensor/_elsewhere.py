"""Finds names that another daemon has, for functions that take a store."""

from __future__ import annotations

import os
from typing import Callable, Optional, Sequence

from ._native import Store, Tensor
from .errors import NotFoundError

#: Brings a name to a store that lacks it, and returns whether it could. :mod:`cotensor.ray` sets it.
bring: Optional[Callable[[Store, str], bool]] = None
#: Brings the folder of a model to the node of a store that lacks it: the store, the model's name, the folder to which the name is
#: relative, and the variants of which one is needed, the best first. Returns the folder, or the name if the model is found by it.
#: :mod:`cotensor.ray` sets it.
bring_model: Optional[Callable[[Store, str, str, Sequence[Optional[str]]], str]] = None


def model(store: Store, name: str, base: str = ".", variants: Sequence[Optional[str]] = (None,)) -> str:
    """What engines that use this store find the model by: its name, or a folder, if another node has the files.

    ``variants`` of its graphs are wanted, the best first; None is any variant.
    """
    return name if bring_model is None else bring_model(store, name, os.path.abspath(base), variants)


def get(store: Store, name: str) -> Tensor:
    """The newest version of a name, as :meth:`Store.get` returns it. Other daemons are asked if the store lacks it."""
    try:
        return store.get(name)
    except NotFoundError:
        if bring is None or not bring(store, name):
            raise
    return store.get(name)
