"""Functions of other processes, found by name."""

from __future__ import annotations

import difflib
from typing import Any, Callable, Dict, Iterator, List

from ..errors import InvalidError, NotFoundError


class Directory:
    """Looks functions up and calls them, for attributes and items. With ``waits``, a function is looked up by its call, which
    waits for a provider."""

    __slots__ = ("call", "provides", "list", "waits")

    def __init__(
        self,
        call: Callable[..., Any],
        provides: Callable[[str], bool],
        list: Callable[[str], "List[Dict[str, Any]]"],
        waits: bool = False,
    ) -> None:
        self.call = call
        self.provides = provides
        self.list = list
        self.waits = waits

    def names(self, prefix: str = "") -> "List[str]":
        """The sorted names that start with ``prefix``."""
        return [info["name"] for info in self.list(prefix)]

    def suggestion(self, name: str) -> str:
        """``; did you mean …?`` with similar names, or an empty string."""
        names = self.names()
        if name in names:
            return ""  # a provider has registered it meanwhile
        alike = difflib.get_close_matches(name, names, n=3)
        return f"; did you mean {' or '.join(map(repr, alike))}?" if alike else ""

    def function(self, name: str) -> "RemoteFunction":
        """The function ``name``, or the functions whose names start with ``name`` and a dot.

        Raises :class:`~cotensor.errors.NotFoundError` without any, unless the call waits for one.
        """
        if not self.waits and not self.provides(name) and not self.names(name + "."):
            raise NotFoundError(f"no process provides a function {name!r}{self.suggestion(name)}", field="name")
        return RemoteFunction(self, name)

    def attribute(self, name: str) -> "RemoteFunction":
        """As :meth:`function`, but raises :class:`AttributeError`."""
        try:
            return self.function(name)
        except NotFoundError as error:
            raise AttributeError(str(error)) from None

    def beneath(self, prefix: str) -> "List[str]":
        """The next part of every name that starts with ``prefix``, sorted."""
        return sorted({name[len(prefix) :].split(".")[0] for name in self.names(prefix)})


class RemoteFunction:
    """A function of another process. Call it like any function.

    A dot in a name is an attribute: ``client.functions.model.run(…)`` calls ``model.run``.
    """

    __slots__ = ("_directory", "__name__")

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory = directory
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._directory.call(self.__name__, args, kwargs)

    def __getattr__(self, name: str) -> "RemoteFunction":
        if name.startswith("_"):
            raise AttributeError(name)
        return self._directory.attribute(f"{self.__name__}.{name}")

    def __dir__(self) -> "List[str]":
        return self._directory.beneath(self.__name__ + ".")

    def __repr__(self) -> str:
        return f"<RemoteFunction {self.__name__}>"


class Functions:
    """The functions of all providers: ``functions.add(1, 2)``, ``functions["model.run"](…)``, ``"add" in functions``.

    Iteration yields their sorted names. An attribute or an item that no process provides raises at once.
    """

    __slots__ = ("_directory",)

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> RemoteFunction:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._directory.attribute(name)

    def __getitem__(self, name: str) -> RemoteFunction:
        if not isinstance(name, str):
            raise InvalidError(f"name: pass the name of a function, not {name!r}", field="name")
        return self._directory.function(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._directory.names())

    def __len__(self) -> int:
        return len(self._directory.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._directory.provides(name)

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> "List[str]":
        return self._directory.beneath("")

    def _ipython_key_completions_(self) -> "List[str]":
        return self._directory.names()

    def __repr__(self) -> str:
        return "<Functions of all providers>"
