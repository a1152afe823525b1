"""Every public name is exported and documented."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "python" / "README.md"]
DOCUMENTS = "\n".join(page.read_text() for page in PAGES)
MODULES = "aio async_client async_provider client errors functions models pool provider server sharing streaming torch".split()
MODULES.append("tensorref")


@pytest.mark.parametrize("name", ["", *MODULES])
def test_public_names_are_exported_and_documented(name):
    if name in ("tensorref", "torch"):
        pytest.importorskip("torch")
    module = importlib.import_module(f"cotensor.{name}".rstrip("."))
    assert module.__doc__ and module.__all__
    for exported in module.__all__:
        assert inspect.getdoc(getattr(module, exported)), f"{exported} has no docstring"
        assert exported in DOCUMENTS or exported == "__version__", f"no document names {exported}"


def test_every_exception_is_exported_by_the_package():
    import cotensor
    from cotensor import errors

    assert set(errors.__all__) <= set(cotensor.__all__)
