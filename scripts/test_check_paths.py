"""Tests of check_paths.py."""
import unittest

from check_paths import LINK, PATH, ROOT, exists, expanded


class Paths(unittest.TestCase):
    def test_finds_links_and_paths_in_backticks(self):
        self.assertEqual(LINK.findall("[a](docs/reference/rust.md#part) [b](https://example.org) [c](#here)"), ["docs/reference/rust.md"])
        self.assertEqual(PATH.findall("`store/{a,b}.rs`, `core/` and `cotensor serve --spill DIR` or `a/b`"), ["store/{a,b}.rs", "core/"])

    def test_expands_braces(self):
        self.assertEqual(list(expanded("{x,y}/{a,b}.rs")), ["x/a.rs", "x/b.rs", "y/a.rs", "y/b.rs"])

    def test_resolves_the_short_form_of_crates(self):
        document = ROOT / "ARCHITECTURE.md"
        self.assertTrue(exists(document, "core/lib.rs") and exists(document, "scripts/check_paths.py"))
        self.assertFalse(exists(document, "core/no_such_file.rs"))

    def test_resolves_paths_in_a_table_row(self):
        document = ROOT / "ARCHITECTURE.md"
        self.assertTrue(exists(document, "protocol/", "cotensor-client") and exists(document, "cotensor/", "python/"))
        self.assertFalse(exists(document, "no_such_folder/", "cotensor-client"))
