"""Programs of a few small files, for the tests of import circles."""
import tempfile
from pathlib import Path


def circles_of(files, ending, read):
    """The circles of a program, as lists of paths without folder and ending.

    `files` has texts by such a path (`a/b`). `read` makes the graph of the folder that they are written to.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name).with_suffix(ending)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        graph = read(Path(folder))
        return [["/".join(file.relative_to(graph.folder).with_suffix("").parts) for file in circle] for circle in graph.circles()]
