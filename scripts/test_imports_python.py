"""Tests of imports_python.py: small packages in a temporary folder."""
import tempfile
import unittest
from pathlib import Path

from imports_python import Package
from source_tree import circles_of


class PythonImports(unittest.TestCase):
    def circles(self, **files):
        """The circles of a package `p` with these files (`a__b` is a/b.py; `init` is __init__.py)."""
        names = {name: "/".join("__init__" if part == "init" else part for part in name.split("__")) for name in ["init", *files]}
        paths = {f"p/{path}": files.get(name, "") for name, path in names.items()}
        return circles_of(paths, ".py", lambda folder: Package(folder / "p"))

    def test_finds_relative_and_absolute_imports(self):
        found = self.circles(a="from .b import f\nf()", b="import p.c\np.c.g()", c="from p import a\na.x")
        self.assertEqual(found, [["a", "b", "c"]])

    def test_imports_in_functions_count(self):
        self.assertEqual(self.circles(a="from .b import f\nf()", b="def f():\n    from .a import g\n    g()"), [["a", "b"]])

    def test_imports_of_types_count(self):
        b = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import A\ndef f(a: 'list[A]'): pass"
        self.assertEqual(self.circles(a="from .b import f\nf()\nclass A: pass", b=b), [["a", "b"]])

    def test_reexport_is_followed_and_is_no_import(self):
        found = self.circles(init="from .a import A\n__all__ = ['A']", a="from . import B\nB()", b="class B: pass\nfrom . import A")
        self.assertEqual(found, [])
        found = self.circles(init="from .a import A\nfrom .b import B", a="from . import B\nclass A(B): pass", b="from . import A\nB = A")
        self.assertEqual(found, [["a", "b"]])

    def test_describes_each_edge_with_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.py").write_text("import os\nfrom . import b\nb.f")
            Path(folder, "b.py").write_text("from .a import x\nx")
            made = Package(folder)
            lines = list(made.describe(made.circles()[0]))
            name = Path(folder).name
        self.assertEqual(lines[0], f"{folder}/a.py:2: {name}.b -> {folder}/b.py")
        self.assertEqual(lines[1], f"{folder}/b.py:1: {name}.a.x -> {folder}/a.py")


if __name__ == "__main__":
    unittest.main()
