#!/usr/bin/env python3
"""Holds the arrows of ARCHITECTURE.md: each crate may depend on those named here and on no other of ours."""
import json
import subprocess
import sys

ALLOWED = {
    "cotensor-core": set(),
    "cotensor-store": {"cotensor-core"},
    "cotensor-memory": {"cotensor-core"},
    "cotensor-model": {"cotensor-core", "cotensor-store"},
    "cotensor-client": {"cotensor-core", "cotensor-store", "cotensor-memory"},
    "cotensor-daemon": {"cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-model", "cotensor-client"},
    "cotensor": {"cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-model", "cotensor-client"},
    "cotensor-demo": {"cotensor"},
    "cotensor-soak": {
        "cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-model", "cotensor-client", "cotensor-daemon", "cotensor-demo"
    },
    "cotensor-cli": {"cotensor", "cotensor-demo", "cotensor-client", "cotensor-daemon"},
    # The extension: everything comes in by the library, its parts and the command.
    "cotensor-python": {
        "cotensor", "cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-model", "cotensor-client", "cotensor-cli",
        "cotensor-daemon"
    },
    # Tests only.
    "cotensor-attacks": {"cotensor-core", "cotensor-store", "cotensor-memory", "cotensor-client", "cotensor-daemon"},
}

metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--no-deps"]))
packages = {package["name"]: package for package in metadata["packages"]}
wrong = [f"{name}: not in the list of layers" for name in packages.keys() - ALLOWED.keys()]
wrong += [f"{name}: no such crate any more" for name in ALLOWED.keys() - packages.keys()]
for name, package in packages.items():
    for dependency in package["dependencies"]:
        # Development dependencies may look further: tests wire things up.
        if dependency["kind"] != "dev" and dependency["name"] in packages:
            if dependency["name"] not in ALLOWED.get(name, set()):
                wrong.append(f"{name} must not depend on {dependency['name']}")
print("\n".join(wrong) or f"{len(packages)} crates, every arrow as drawn")
sys.exit(bool(wrong))
