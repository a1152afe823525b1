"""Imports among the files of a Rust crate.

Reads the `use` declarations and the inline paths of each file, and resolves each path through re-exports to the file that
defines the item. Ignores test code, and re-exports that their own file does not use: a `mod.rs` that only declares and
re-exports is in no circle. Calls of methods are not seen: an `impl` block may be in any file of the crate.
"""
import re
from pathlib import Path

from import_graph import ImportGraph

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(?P<hashes>#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\n]+?|[^\\\'\n])\'', re.DOTALL
)
TEST_ONLY = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]")
MODULE = re.compile(r'(?:#\[path = "(?P<path>[^"]+)"\]\s*)?(?:pub(?:\([^)]*\))?\s+)?\bmod\s+(?P<name>\w+)\s*(?P<end>[;{])')
USE = re.compile(r"(?P<public>\bpub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:])(?:crate|self|super|[a-z_]\w*)(?:\s*::\s*\w+)+")
DEFINED = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)")


class Module:
    """One module: its file, its text without comments, strings, tests and nested modules, and the names in its scope."""

    def __init__(self, path, file, text, first_line):
        self.path, self.file, self.text, self.first_line = path, file, text, first_line
        self.defined, self.uses, self.globs = set(DEFINED.findall(text)), {}, []

    def line(self, offset):
        return self.first_line + self.text.count("\n", 0, offset)


def blank(text):
    """`text` with everything but its line ends replaced by spaces."""
    return re.sub(r"[^\n]", " ", text)


def closing(text, start):
    """The offset behind the bracket that closes the one at `start`."""
    depth = 0
    for offset in range(start, len(text)):
        depth += (text[offset] in "{([") - (text[offset] in "})]")
        if depth == 0:
            return offset + 1
    return len(text)


def without_tests(text):
    """`text` with every item under `#[cfg(test)]` blanked."""
    while found := TEST_ONLY.search(text):
        end = found.end()
        while end < len(text) and text[end] not in ";{":
            end = closing(text, end) if text[end] in "([" else end + 1
        end = closing(text, end) if text[end:end + 1] == "{" else end + 1
        text = text[:found.start()] + blank(text[found.start():end]) + text[end:]
    return text


def leaves(tree, prefix=()):
    """The (path, name) pairs of a use tree: `a::{b, c as d, e::*}`."""
    depth, parts, part = 0, [], ""
    for char in tree:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts, part = [*parts, part], ""
        else:
            part += char
    for branch in filter(None, (branch.strip() for branch in [*parts, part])):
        head, brace, group = branch.partition("{")
        names = tuple(name.strip() for name in head.split("::") if name.strip())
        if brace:
            yield from leaves(group.rstrip()[:-1], prefix + names)
        else:
            last, _, alias = names[-1].partition(" as ")
            path = prefix + names[:-1] + (() if last.strip() == "self" and (prefix or names[:-1]) else (last.strip(),))
            yield path, alias.strip() or path[-1]


class Crate(ImportGraph):
    """The modules below one crate root, and the files that each file depends on."""

    FOLDER_FILES = ("mod.rs", "lib.rs", "main.rs")

    def __init__(self, root):
        super().__init__(Path(root).parent)
        self.modules = {}
        self.read((), Path(root), Path(root).parent)
        for module in self.modules.values():
            self.read_uses(module)
        for module in self.modules.values():
            self.follow(module)

    def read(self, path, file, folder):
        text = TOKEN.sub(lambda found: found[0] if file_name(found, text) else blank(found[0]), text := file.read_text())
        self.add(path, file, folder, without_tests(text), 1)

    def add(self, path, file, folder, text, first_line):
        position = 0
        while found := MODULE.search(text, position):
            name, inner = found["name"], path + (found["name"],)
            if found["end"] == "{":
                end = closing(text, found.end() - 1)
                line = first_line + text.count("\n", 0, found.end())
                self.add(inner, file, folder / name, text[found.end():end - 1], line)
            else:
                end = found.end()
                choices = [file.parent / found["path"]] if found["path"] else [folder / f"{name}.rs", folder / name / "mod.rs"]
                target = next((choice for choice in choices if choice.exists()), None)
                if target is None:
                    raise SystemExit(f"{file}:{first_line + text.count(chr(10), 0, found.start('name'))}: no file for mod {name}")
                self.read(inner, target, target.parent if target.name == "mod.rs" else target.with_suffix(""))
            text = text[:found.start()] + blank(text[found.start():end]) + text[end:]
            position = end
        self.modules[path] = Module(path, file, text, first_line)

    def read_uses(self, module):
        """Fills the names that `use` declarations bring into `module`, and blanks the declarations."""
        module.imports = []
        for found in USE.finditer(module.text):
            for path, name in leaves(found["tree"]):
                module.imports.append((path, name, bool(found["public"]), module.line(found.start())))
                if name == "*":
                    module.globs.append(path[:-1])
                else:
                    module.uses[name] = path
        module.text = USE.sub(lambda found: blank(found[0]), module.text)

    def resolve(self, module, path, seen=frozenset()):
        """The module that holds the item at `path`, and whether `path` is that module itself; None outside of the crate."""
        here, rest = module, list(path)
        if rest[0] == "crate":
            here, rest = self.modules[()], rest[1:]
        elif rest[0] in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                here = self.modules[here.path[:-1]] if rest.pop(0) == "super" else here
        elif here.path + (rest[0],) not in self.modules and rest[0] not in here.uses:
            return None
        while rest:
            name, inner = rest[0], here.path + (rest[0],)
            if (here.path, name) in seen:
                return here, False
            seen = seen | {(here.path, name)}
            if inner in self.modules:
                here, rest = self.modules[inner], rest[1:]
            elif name in here.uses and name not in here.defined:
                target = self.resolve(here, here.uses[name], seen)
                if target is None or not target[1]:
                    return target
                here, rest = target[0], rest[1:]
            else:
                for glob in here.globs if name not in here.defined else ():
                    target = self.resolve(here, glob, seen) if glob else None
                    if target and target[1] and self.offers(target[0], name):
                        return self.resolve(target[0], ("self", *rest), seen)
                return here, False
        return here, True

    def offers(self, module, name):
        return name in module.defined or name in module.uses or module.path + (name,) in self.modules

    def follow(self, module):
        """Adds an edge for each item of another file that `module` names."""
        words = set(re.findall(r"\w+", module.text))
        paths = [(path, line) for path, name, public, line in module.imports if not public or name in words]
        for found in PATH.finditer(module.text):
            paths.append((tuple(re.split(r"\s*::\s*", found[0])), module.line(found.start())))
        for path, line in paths:
            glob = path[-1] == "*"
            target = self.resolve(module, path[:-1] if glob else path) if path != ("*",) else None
            # A module's name alone is not a dependency on what is in it: the paths that begin with it are.
            if target and (glob or not target[1]):
                self.add_edge(module.file, target[0].file, "::".join(path), line)


def file_name(found, text):
    """Whether the string literal `found` is the file of a `#[path]`."""
    return text[:found.start()].endswith("#[path = ")
