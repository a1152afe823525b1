"""State that a forked child makes anew, such as locks.

Another thread of the parent may hold a lock at the fork. That thread does not exist in the child, so the child's copy of the lock
is never released.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from typing import Any, Callable, Dict, Tuple, TypeVar

T = TypeVar("T")

_numbers = itertools.count()
#: The attributes of live owners, with the functions that make their values.
_renewed: "Dict[int, Tuple[weakref.ref[Any], str, Callable[[], Any]]]" = {}


def renewed(owner: Any, attribute: str, make: Callable[[], T]) -> T:
    """Returns ``make()`` for ``owner.attribute``. In a forked child, the attribute gets the value of another call of ``make``.

    ``owner`` is an object or a module. A ``with`` block that runs during the fork releases the lock that it holds, which is the
    earlier one.
    """
    number = next(_numbers)
    # The interpreter may have cleared this module when the owner ends.
    remove = functools.partial(_renewed.pop, number, None)
    _renewed[number] = weakref.ref(owner, lambda _: remove()), attribute, make
    return make()


def _forked() -> None:
    for reference, attribute, make in list(_renewed.values()):
        owner = reference()
        if owner is not None:
            setattr(owner, attribute, make())


os.register_at_fork(after_in_child=_forked)
