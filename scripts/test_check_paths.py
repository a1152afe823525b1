"""Tests of check_paths.py."""
import unittest

from check_paths import LINK, PATH, ROOT, exists, spelt_out


class Paths(unittest.TestCase):
    def test_finds_links_and_paths_in_backticks(self):
        self.assertEqual(LINK.findall("[a](docs/rust.md#part) [b](https://example.org) [c](#here)"), ["docs/rust.md"])
        self.assertEqual(PATH.findall("`store/{a,b}.rs`, `core/` and `cotensor serve --spill DIR` or `a/b`"), ["store/{a,b}.rs", "core/"])

    def test_spells_out_braces(self):
        self.assertEqual(list(spelt_out("{x,y}/{a,b}.rs")), ["x/a.rs", "x/b.rs", "y/a.rs", "y/b.rs"])

    def test_knows_the_short_form_of_crates(self):
        document = ROOT / "ARCHITECTURE.md"
        self.assertTrue(exists(document, "core/lib.rs") and exists(document, "scripts/check_paths.py"))
        self.assertFalse(exists(document, "core/no_such_file.rs"))

    def test_knows_the_folder_of_a_table_row(self):
        document = ROOT / "ARCHITECTURE.md"
        self.assertTrue(exists(document, "protocol/", "cotensor-client") and exists(document, "cotensor/", "python/"))
        self.assertFalse(exists(document, "no_such_folder/", "cotensor-client"))
