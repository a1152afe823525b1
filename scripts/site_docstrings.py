"""An extension of griffe, which reads the Python package for the site.

The classes of the extension module have their types in `_native.pyi` and their docstrings in the module itself: this copies the docstrings. It
also turns the roles of Sphinx (`:class:`) into code, because the site is Markdown.
"""
import importlib
import inspect
import re

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data|py:\w+):`~?([^`]+)`")
#: "as in this::" before an indented block.
LITERAL = re.compile(r"::$", re.MULTILINE)


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg, **_options):
        _complete(pkg, set())


def _complete(obj, seen):
    """Completes the docstring of an object, and those of its members."""
    if obj.is_alias or obj.path in seen:
        return
    seen.add(obj.path)
    if obj.path.startswith("cotensor._native.") and not obj.docstring:
        text = inspect.getdoc(_imported(obj.path))
        obj.docstring = griffe.Docstring(text, parent=obj) if text else None
    if obj.docstring:
        obj.docstring.value = LITERAL.sub(":", ROLE.sub(r"`\1`", obj.docstring.value))
    for member in obj.members.values():
        _complete(member, seen)


def _imported(path):
    """The object with a path such as `cotensor._native.Store.put`, or `None`."""
    found = importlib.import_module("cotensor._native")
    for name in path.split(".")[2:]:
        found = getattr(found, name, None)
    return found
