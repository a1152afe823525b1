"""Tests of imports_rust.py: small crates in a temporary folder."""
import tempfile
import unittest
from pathlib import Path

from imports_rust import Crate
from source_tree import circles_of


class RustImports(unittest.TestCase):
    def circles(self, **files):
        """The circles of a crate with these files (`a__b` is a/b.rs)."""
        paths = {name.replace("__", "/"): text for name, text in files.items()}
        return circles_of(paths, ".rs", lambda folder: Crate(folder / "lib.rs"))

    def test_finds_a_circle_of_use_declarations(self):
        found = self.circles(
            lib="mod a; mod b; mod c;",
            a="use crate::b::B; pub struct A(B);",
            b="use super::c::{self, C}; pub struct B(C);",
            c="pub struct C; fn f() { crate::a::A; }",
        )
        self.assertEqual(found, [["a", "b", "c"]])

    def test_finds_a_pair(self):
        found = self.circles(lib="mod a; mod b;", a="use crate::b::B; pub struct A(B);", b="use crate::a::A; pub struct B(A);")
        self.assertEqual(found, [["a", "b"]])

    def test_follows_reexports_to_the_defining_file(self):
        found = self.circles(
            lib="mod a; pub use a::{X, Y};",
            a__mod="mod x; mod y; pub use x::X; pub use y::*;",
            a__x="use super::Y; pub struct X(Y);",
            a__y="pub struct Y;",
        )
        self.assertEqual(found, [])

    def test_counts_a_reexport_that_its_own_file_uses(self):
        found = self.circles(
            lib="mod a;",
            a__mod="mod x; pub use x::X; pub struct Shared; fn f(_: X) {}",
            a__x="use super::Shared; pub struct X(Shared);",
        )
        self.assertEqual(found, [["a/mod", "a/x"]])

    def test_follows_paths_through_imported_modules(self):
        found = self.circles(
            lib="mod a; mod b;", a="use crate::b; pub fn f() { b::g() }", b="use crate::a; pub fn g() { a :: f() }"
        )
        self.assertEqual(found, [["a", "b"]])

    def test_ignores_module_names_as_edges(self):
        found = self.circles(lib="mod a; mod b;", a="use crate::b; pub struct A;", b="use crate::a::A; pub struct B(A);")
        self.assertEqual(found, [])

    def test_ignores_tests_comments_and_strings(self):
        found = self.circles(
            lib="mod a; mod b;",
            a="use crate::b::B; pub struct A(B);",
            b='''// crate::a::A
                pub struct B; const TEXT: &str = "use crate::a::A;"; const RAW: &str = r#"crate::a::A"#;
                #[cfg(test)] use crate::a::A;
                #[cfg(test)] mod tests { use crate::a::A; fn f() -> [A; 2] { todo!() } }''',
        )
        self.assertEqual(found, [])

    def test_resolves_inline_modules_and_path_attributes(self):
        found = self.circles(
            lib='mod a; #[path = "other.rs"] mod b;',
            a="mod inner { use super::super::b::B; pub struct I(B); } pub struct A;",
            other="use crate::a::A; pub struct B(A);",
        )
        self.assertEqual(found, [["a", "other"]])

    def test_describes_each_edge_with_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "lib.rs").write_text("mod a;\nmod b;")
            Path(folder, "a.rs").write_text("//! A.\n\nuse crate::b::{B, C};\npub struct A(B, C);")
            Path(folder, "b.rs").write_text("use crate::a::A;\npub struct B(A);\npub struct C;")
            crate = Crate(Path(folder, "lib.rs"))
            lines = list(crate.describe(crate.circles()[0]))
        self.assertEqual(lines[0], f"{folder}/a.rs:3: crate::b::B, crate::b::C -> {folder}/b.rs")
        self.assertEqual(lines[1], f"{folder}/b.rs:1: crate::a::A -> {folder}/a.rs")


if __name__ == "__main__":
    unittest.main()
