"""Imports among the files of a TypeScript program.

Reads `import`, also `import type`, which the compiler removes but a reader needs, and `import()`, which only delays the load.
Resolves each name through re-exports to the file that defines it. Ignores re-exports (`export … from`) in the file itself. A worker
that a file starts by its URL is a program of its own, and no import.
"""
import re

from import_graph import ImportGraph

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|`(?:\\.|[^`\\])*`', re.DOTALL)
FROM = re.compile(r'(?m)^\s*(?P<word>import|export)\b(?P<names>[^;"\'(]*?)\bfrom\s*["\'](?P<path>\.[^"\']+)["\']')
WHOLE = re.compile(r'(?m)\bimport\s*\(\s*["\'](?P<dynamic>\.[^"\']+)["\']|^\s*import\s*["\'](?P<effect>\.[^"\']+)["\']')
DEFINED = re.compile(
    r"(?m)^\s*export\s+(?:default\s+)?(?:declare\s+)?(?:abstract\s+)?(?:async\s+)?"
    r"(?:class|interface|type|enum|namespace|const|let|var|function)\b\s*\*?\s*(\w+)"
)


class Program(ImportGraph):
    """The modules below one folder, and the files that each file depends on."""

    FOLDER_FILES = ("index.ts",)

    def __init__(self, folder):
        super().__init__(folder)
        files = [file for file in sorted(self.folder.glob("**/*.ts")) if not file.name.endswith(".d.ts")]
        self.texts = {file: TOKEN.sub(without_comments, file.read_text()) for file in files}
        self.defined = {file: set(DEFINED.findall(text)) for file, text in self.texts.items()}
        #: By file: the re-exported names, each with the file and the name there, and the files that are re-exported as a whole.
        self.exported, self.exported_files = {}, {}
        for file, text in self.texts.items():
            self.read_exports(file, text)
        for file, text in self.texts.items():
            self.follow(file, text)

    def target(self, file, path):
        target = (file.parent / path).resolve().with_suffix("")
        choices = [target.with_suffix(".ts"), target / "index.ts"]
        known = {one.resolve(): one for one in self.texts}
        return next((known[choice] for choice in choices if choice in known), None)

    def read_exports(self, file, text):
        names, files = self.exported.setdefault(file, {}), self.exported_files.setdefault(file, [])
        for found in FROM.finditer(text):
            other = self.target(file, found["path"])
            if found["word"] == "export" and other:
                files += [other] if "*" in found["names"] else []
                names.update({alias: (other, name) for name, alias in bindings(found["names"])})

    def follow(self, file, text):
        """Adds an edge for each name of another file that `file` imports."""
        for found in FROM.finditer(text):
            other = self.target(file, found["path"])
            if found["word"] == "import" and other:
                # A default import, or `* as name`: the file itself.
                pairs = bindings(found["names"]) or [(None, None)]
                for name, _ in pairs:
                    self.add_edge(file, self.definer(other, name), name or found["path"], line_of(text, found))
        for found in WHOLE.finditer(text):
            path = found["dynamic"] or found["effect"]
            if other := self.target(file, path):
                self.add_edge(file, other, path, line_of(text, found))

    def definer(self, file, name, seen=frozenset()):
        """The file that defines a name which `file` exports."""
        if name is None or name in self.defined[file] or file in seen:
            return file
        seen = seen | {file}
        if name in self.exported[file]:
            return self.definer(*self.exported[file][name], seen)
        for other in self.exported_files[file]:
            definer = self.definer(other, name, seen)
            if name in self.defined[definer]:
                return definer
        return file


def without_comments(found):
    text = found[0]
    return re.sub(r"[^\n]", " ", text) if text[0] in "/`" else text


def bindings(names):
    """The (name, alias) pairs in the braces of an import or export."""
    braces = re.search(r"\{(.*)\}", names, re.DOTALL)
    pairs = []
    for part in braces[1].split(",") if braces else ():
        words = part.split()
        words = words[1:] if words[:1] == ["type"] and len(words) > 1 and words[1] != "as" else words
        if words:
            pairs.append((words[0], words[-1]))
    return pairs


def line_of(text, found):
    return text.count("\n", 0, len(text[:found.end()].rstrip())) + 1
