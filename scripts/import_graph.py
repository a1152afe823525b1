"""The imports among the files of one program, and the circles that they form."""
from pathlib import Path


class ImportGraph:
    """The files below a folder, and the files that each one depends on. A subclass for each language adds the edges.

    A type that a file names is a dependency like any other: a reader needs both files.
    """

    #: The files that hold what belongs to their folder, by their names.
    FOLDER_FILES = ()

    def __init__(self, folder):
        self.folder = Path(folder)
        #: By file and other file: the imported names, each with the line of its first import.
        self.edges = {}

    def add_edge(self, file, other, name, line):
        if other != file:
            self.edges.setdefault(file, {}).setdefault(other, {}).setdefault(name, line)

    def circles(self):
        """Groups of two or more files in which each file depends on each other one."""
        return circles({file: set(others) for file, others in self.edges.items()})

    def describe(self, circle):
        """One line for each edge within `circle`."""
        for file in circle:
            for other in sorted(self.edges.get(file, ())):
                if other in circle:
                    yield self.describe_edge(file, other)

    def describe_edge(self, file, other):
        """File and line of the first import, the imported names, the other file."""
        names = self.edges[file][other]
        return f"{shown(file)}:{min(names.values())}: {', '.join(names)} -> {shown(other)}"

    def folder_edges(self):
        """By folder, name and other name: the edges between what stands side by side in a folder.

        A name stands for a file, for a folder with all files in it, or for both: `store.rs` and `store/`. The files of the folder
        itself (`mod.rs`) combine the others, and are left out.
        """
        found = {}
        for file, others in self.edges.items():
            for other in others:
                parts, other_parts = self.parts(file), self.parts(other)
                depth = next((at for at, (one, two) in enumerate(zip(parts, other_parts)) if one != two), None)
                if depth is not None:
                    names = found.setdefault("/".join(parts[:depth]), {}).setdefault(parts[depth], {})
                    names.setdefault(other_parts[depth], []).append((file, other))
        return found

    def parts(self, file):
        parts = file.relative_to(self.folder).with_suffix("").parts
        return parts[:-1] if file.name in self.FOLDER_FILES else parts

    def folder_circles(self):
        """The circles of folders, each as (folder, names, lines)."""
        found = []
        for folder, names in sorted(self.folder_edges().items()):
            for circle in circles({name: set(others) for name, others in names.items()}):
                edges = [edge for name in circle for other in circle if other in names.get(name, ()) for edge in names[name][other]]
                found.append((folder, circle, sorted(self.describe_edge(*edge) for edge in edges)))
        return found


def circles(edges):
    """Groups of two or more nodes that reach each other, each in order."""
    reached = {node: reach(edges, node) for node in edges}
    groups = {frozenset(other for other in nodes if node in reached.get(other, ())) for node, nodes in reached.items()}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def reach(edges, node):
    reached, waiting = set(), [node]
    while waiting:
        new = edges.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def shown(file):
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
