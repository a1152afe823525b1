"""Tests of import_graph.py: graphs with given edges."""
import unittest
from pathlib import Path

from import_graph import ImportGraph


def graph(*edges):
    """A graph of files below /src; each edge is a pair of paths without ending."""
    made = ImportGraph("/src")
    made.FOLDER_FILES = ("mod.rs",)
    for file, other in edges:
        made.add_edge(Path("/src", f"{file}.rs"), Path("/src", f"{other}.rs"), other, 3)
    return made


class FolderCircles(unittest.TestCase):
    def names(self, made):
        return [(folder, names) for folder, names, _ in made.folder_circles()]

    def test_folders_form_a_circle_that_files_do_not(self):
        made = graph(("a/one", "b/one"), ("b/two", "a/two"))
        self.assertEqual(made.circles(), [])
        self.assertEqual(self.names(made), [("", ["a", "b"])])

    def test_file_belongs_to_the_folder_of_its_name(self):
        self.assertEqual(self.names(graph(("a", "b"), ("b", "a/inner"))), [("", ["a", "b"])])
        self.assertEqual(self.names(graph(("a", "a/inner"), ("a/inner", "a/other"))), [])

    def test_inner_folders_are_compared_in_their_folder(self):
        made = graph(("a/x/one", "a/y/one"), ("a/y/two", "a/x/two"))
        self.assertEqual(self.names(made), [("a", ["x", "y"])])

    def test_edges_have_file_and_line(self):
        found = graph(("a/one", "b/one"), ("b/two", "a/two")).folder_circles()
        self.assertEqual(found[0][2], ["/src/a/one.rs:3: b/one -> /src/b/one.rs", "/src/b/two.rs:3: a/two -> /src/a/two.rs"])


if __name__ == "__main__":
    unittest.main()
