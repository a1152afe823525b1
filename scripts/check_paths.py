#!/usr/bin/env python3
"""Fails when a document names a path that does not exist.

Checks the links of every document. In ARCHITECTURE.md, SECURITY.md, attacks/ and docs/decisions/ it also checks the paths in backticks that
end in `/` or in the name of a source file. A path is relative to the repository's root, to the document's folder, or, in a table, to the
folder or crate of the row's first cell. `store/leases/` means `crates/cotensor-store/src/leases/`, and `{a,b}.rs` means `a.rs` and `b.rs`.
"""
import re
import sys
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["*.md", "docs/**/*.md", "attacks/*.md", "python/*.md", "web/*.md", "fixtures/*.md", "examples/**/*.md"]
WITH_PATHS = re.compile(r"ARCHITECTURE|SECURITY|attacks/|docs/decisions/")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
PATH = re.compile(r"`([\w.{},-]+(?:/[\w.{},-]+)*(?:/|\.(?:rs|py|toml|md|json|sh|service)))`")
BRACES = re.compile(r"\{([^{}]*)\}")


def expanded(path):
    """`path` with each of its braces' alternatives."""
    braces = BRACES.search(path)
    if not braces:
        return [path]
    return chain.from_iterable(expanded(path.replace(braces[0], each, 1)) for each in braces[1].split(","))


def exists(document, path, row=""):
    crate, _, rest = path.partition("/")
    folders = [ROOT, document.parent, *([ROOT / row, ROOT / "crates" / row / "src"] if row else [])]
    return any((folder / path).exists() for folder in folders) or (ROOT / f"crates/cotensor-{crate}/src" / rest).exists()


def dead(document):
    """The (line, path) pairs of paths in `document` that do not exist."""
    for number, line in enumerate(document.read_text().splitlines(), 1):
        for path in LINK.findall(line):
            if not (document.parent / path).exists():
                yield number, path
        row = line.split("|")[1].strip(" `") if line.startswith("|") else ""
        for path in PATH.findall(line) if WITH_PATHS.search(str(document.relative_to(ROOT))) else ():
            yield from ((number, each) for each in expanded(path) if "/" in each and not exists(document, each, row))


def main():
    documents = sorted(set(chain.from_iterable(ROOT.glob(pattern) for pattern in DOCUMENTS)))
    wrong = [f"{document.relative_to(ROOT)}:{line}: {path} does not exist" for document in documents for line, path in dead(document)]
    print("\n".join(wrong) or f"{len(documents)} documents, all paths exist")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
