"""Imports among the files of a Python package.

Reads every `import`, also those inside of functions, which only hide a circle from the interpreter, and those under
`if TYPE_CHECKING`, because a reader of a type needs its file too. Resolves each name through re-exports to the file that defines
it. Ignores names that a file imports and does not use: they are re-exports, as in an `__init__.py`.
"""
import ast
import re

from import_graph import ImportGraph


class Package(ImportGraph):
    """The modules of one package, and the files that each file depends on."""

    FOLDER_FILES = ("__init__.py",)

    def __init__(self, folder):
        super().__init__(folder)
        self.files, self.trees = {}, {}
        for file in sorted(self.folder.glob("**/*.py")):
            name = ".".join([self.folder.name, *self.parts(file)])
            self.files[name], self.trees[name] = file, ast.parse(file.read_text(), str(file))
        #: By module: the names that imports bind, each with the module and the name there (None for a module itself).
        self.bound = {name: dict(self.imports(name, tree.body)) for name, tree in self.trees.items()}
        for name, tree in self.trees.items():
            self.follow(name, tree)

    def imports(self, module, nodes):
        """The (bound name, (module, name there)) pairs of the imports of this package among `nodes`."""
        for node in nodes:
            if isinstance(node, ast.If):
                yield from self.imports(module, node.body + node.orelse)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in self.files:
                        yield (alias.asname or alias.name.split(".")[0]), (alias.name, None)
            elif isinstance(node, ast.ImportFrom) and (source := self.source(module, node)):
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    if inner in self.files:
                        yield (alias.asname or alias.name), (inner, None)
                    elif source in self.files:
                        yield (alias.asname or alias.name), (source, alias.name)

    def source(self, module, node):
        """The module that an `import from` names; None outside of the package."""
        if node.level:
            package = module.split(".") if self.files[module].name == "__init__.py" else module.split(".")[:-1]
            package = package[:len(package) - node.level + 1]
            return ".".join([*package, *([node.module] if node.module else [])])
        return node.module if node.module.split(".")[0] == self.folder.name else None

    def follow(self, module, tree):
        """Adds an edge for each name of another file that `module` imports and uses."""
        used = used_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for bound, (source, name) in self.imports(module, [node]):
                    if bound in used or name == "*":
                        file, shown_name = self.files[self.definer(source, name)], f"{source}.{name}" if name else source
                        self.add_edge(self.files[module], file, shown_name, node.lineno)

    def definer(self, module, name, seen=frozenset()):
        """The module that defines a name of `module`."""
        target = self.bound[module].get(name)
        if name is None or target is None or (module, name) in seen:
            return module
        return self.definer(*target, seen | {(module, name)})


def used_names(tree):
    """The names that a module uses, also in annotations that are strings."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in filter(None, annotations):
            for part in ast.walk(annotation):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    used.update(re.findall(r"\w+", part.value))
    return used
