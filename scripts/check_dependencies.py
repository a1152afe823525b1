#!/usr/bin/env python3
"""Checks the dependencies between the crates, and the imports among the files of each crate, of the Python package and of the web package.

Fails when a crate depends on a workspace crate that `ALLOWED` does not list for it, when no module declares a source file, when two or
more files import each other in a circle, when folders do so, and when the daemon's state uses what has to come in from outside or other
parts of the daemon. Prints the imports of each circle.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

from import_graph import shown
from imports_python import Package
from imports_rust import PATH, Crate
from imports_typescript import Program

ALLOWED = {
    "cotensor-core": set(),
    "cotensor-store": {"cotensor-core"},
    "cotensor-sharing": {"cotensor-core", "cotensor-store"},
    "cotensor-memory": {"cotensor-core"},
    "cotensor-graph": {"cotensor-core"},
    "cotensor-preprocess": {"cotensor-core", "cotensor-graph"},
    "cotensor-pipeline": {"cotensor-core", "cotensor-graph", "cotensor-preprocess"},
    "cotensor-hub": {"cotensor-core", "cotensor-memory", "cotensor-preprocess"},
    "cotensor-model": {
        "cotensor-core", "cotensor-formats", "cotensor-graph", "cotensor-hub", "cotensor-memory", "cotensor-sharing", "cotensor-store",
        "cotensor-pipeline", "cotensor-preprocess", "cotensor-quant"
    },
    "cotensor-placement": {"cotensor-core"},
    "cotensor-quant": {"cotensor-core"},
    "cotensor-rpc": {"cotensor-core"},
    "cotensor-client": {"cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-rpc"},
    "cotensor-formats": {"cotensor-core", "cotensor-store"},
    "cotensor-functions": {"cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-rpc", "cotensor-client"},
    "cotensor-serving": {"cotensor-core", "cotensor-store", "cotensor-model", "cotensor-client", "cotensor-functions"},
    "cotensor-supervisor": {"cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-rpc", "cotensor-client"},
    # The daemon links no engine.
    "cotensor-daemon": {
        "cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-rpc", "cotensor-client", "cotensor-formats", "cotensor-supervisor"
    },
    "cotensor": {
        "cotensor-core", "cotensor-store", "cotensor-sharing", "cotensor-memory", "cotensor-model", "cotensor-client", "cotensor-formats",
        "cotensor-functions", "cotensor-hub", "cotensor-quant", "cotensor-serving"
    },
    # A library for tests.
    "cotensor-fake-cuda": set(),
    "cotensor-demo": {"cotensor"},
    "cotensor-inspect": {"cotensor-core", "cotensor-memory", "cotensor-client"},
    "cotensor-soak": {
        "cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-model", "cotensor-client", "cotensor-daemon", "cotensor-demo"
    },
    "cotensor-cli": {
        "cotensor", "cotensor-rpc", "cotensor-client", "cotensor-formats", "cotensor-functions", "cotensor-serving", "cotensor-daemon",
        "cotensor-demo", "cotensor-inspect", "cotensor-placement"
    },
    # The Python extension: bindings of the library, and the embedded command.
    "cotensor-python": {
        "cotensor", "cotensor-core", "cotensor-store", "cotensor-sharing", "cotensor-memory", "cotensor-model", "cotensor-rpc",
        "cotensor-client", "cotensor-formats", "cotensor-functions", "cotensor-cli", "cotensor-daemon",
        "cotensor-placement"
    },
    # The modules for browsers: bindings of the store, and of what models need.
    "cotensor-web": {"cotensor-core", "cotensor-store"},
    "cotensor-web-models": {"cotensor-core", "cotensor-graph", "cotensor-pipeline", "cotensor-preprocess"},
    # Tests only.
    "cotensor-attacks": {
        "cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-rpc", "cotensor-client", "cotensor-formats", "cotensor-daemon"
    },
}

# The daemon's state gets the time, threads, files and random numbers from outside.
OUTSIDE = re.compile(r"std::(?:time::(?:Instant|SystemTime)|thread|fs(?!::File$))|\w+::(?:process::random_bytes|SystemClock)")


def line_of(file, pattern):
    """The number of the first line of `file` that `pattern` matches, or 1."""
    lines = file.read_text().splitlines()
    return next((number for number, line in enumerate(lines, 1) if re.search(pattern, line)), 1)


def wrong_dependencies(packages):
    script = shown(Path(__file__).resolve())
    for name in sorted(ALLOWED.keys() - packages.keys()):
        yield f'{script}:{line_of(Path(__file__), f"{name}.: ")}: the workspace has no crate {name}'
    for name, package in packages.items():
        manifest = Path(package["manifest_path"])
        if name not in ALLOWED:
            yield f"{shown(manifest)}:1: {script} does not name the crate {name}"
        for dependency in package["dependencies"]:
            # Development dependencies are unrestricted, because tests combine crates.
            if dependency["kind"] != "dev" and dependency["name"] in packages.keys() - ALLOWED.get(name, set()):
                line = line_of(manifest, rf"^{dependency['name']}\b")
                yield f"{shown(manifest)}:{line}: {name} must not depend on {dependency['name']}"


def dead_files(package):
    """Source files of a package that no `mod` declaration names."""
    files = sorted(Path(package["manifest_path"]).parent.glob("src/**/*.rs"))
    named = {name for file in files for name in re.findall(r'\bmod\s+(\w+)\s*;|#\[path = "(?:[^"]*/)?(\w+)\.rs"\]', file.read_text())}
    named = {name for names in named for name in names}
    roots = {target["src_path"] for target in package["targets"]}
    for file in files:
        name = file.parent.name if file.name == "mod.rs" else file.stem
        if name not in named and str(file) not in roots:
            yield f"{shown(file)}:1: no module declares this file"


def programs(packages):
    """The (name, import graph) pairs of all crates and of the packages of the other languages."""
    root = Path(__file__).resolve().parent.parent
    for name, package in packages.items():
        for target in package["targets"]:
            if {"lib", "bin", "rlib", "cdylib"} & set(target["kind"]):
                yield name, Crate(target["src_path"])
    yield "python/cotensor", Package(root / "python/cotensor")
    yield "web/src", Program(root / "web/src")


def import_circles(programs):
    """Lines on all circles of files and of folders."""
    for name, graph in programs:
        for circle in graph.circles():
            yield f"{shown(circle[0])}:1: {name} has an import circle of {len(circle)} files:"
            yield from (f"  {edge}" for edge in graph.describe(circle))
        for folder, names, edges in graph.folder_circles():
            yield f"{shown(graph.folder / folder)}:1: {name} has an import circle of folders: {', '.join(names)}:"
            yield from (f"  {edge}" for edge in edges)


def outside_of_state(crate, folder):
    """The uses in a folder of the daemon's state of what has to come in from outside, and of other files of the crate."""
    for module in (module for path, module in crate.modules.items() if path[:1] == (folder,)):
        used = [("::".join(path), line) for path, _, _, line in module.imports]
        used += [(found[0], module.line(found.start())) for found in PATH.finditer(module.text)]
        for name, line in used:
            if OUTSIDE.match(name):
                yield f"{shown(module.file)}:{line}: the daemon's state must not use {name}: it comes in from outside"
    files = {module.file for path, module in crate.modules.items() if path[:1] == (folder,)}
    for file in sorted(files):
        for other in sorted(crate.edges.get(file, {}).keys() - files):
            yield f"{crate.describe_edge(file, other)}: the daemon's state must not use what is above it"


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    packages = {package["name"]: package for package in json.loads(subprocess.check_output(command))["packages"]}
    wrong = list(wrong_dependencies(packages))
    for package in packages.values():
        wrong += dead_files(package)
    wrong += import_circles(programs(packages))
    for package, folder in (("cotensor-daemon", "state"), ("cotensor-supervisor", "journal")):
        root = Path(packages[package]["manifest_path"]).parent
        wrong += outside_of_state(Crate(root / "src/lib.rs"), folder)
    print("\n".join(wrong) or f"{len(packages)} crates: all dependencies are allowed, no import circles of files or folders")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
