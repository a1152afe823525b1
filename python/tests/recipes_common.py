"""Runs the programs of examples/recipes at a small size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict

from conftest import REPOSITORY
from functions_common import environment

RECIPES = REPOSITORY / "examples" / "recipes"
MIB = 1 << 20
PARTS = ("processes_bytes", "daemon_bytes", "model_process_bytes", "unmapped_bytes")


def measured(recipe: str, *arguments: str, processes: int = 2) -> Dict[str, Any]:
    """What `measure.py --json` of a recipe prints, after a check of its memory and of what it leaves.

    `measure.py` fails if the program without Cotensor and the program with it give other answers.
    """
    # The names of pytest's folders are too long for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="rec-") as folder:
        command = [sys.executable, str(RECIPES / recipe / "measure.py"), "--processes", str(processes), "--json", *arguments]
        done = subprocess.run(command, env=environment(TMPDIR=folder), stdout=subprocess.PIPE, text=True, timeout=100)
        assert done.returncode == 0, f"{recipe} failed; its message is above"
        assert not processes_of(folder), "the daemon still runs"
        # onnxruntime leaves a file with the number of its session, and a terminated torch its compiler's folder.
        left = {name for name in os.listdir(folder) if name != ".ses" and not name.startswith("torchinductor_")}
        assert not left, f"{recipe} leaves {left}"
    found: Dict[str, Any] = json.loads(done.stdout)
    assert found["recipe"] == recipe and found["processes"] == processes
    run = [variant for variant in ("without", "with") if variant in found]
    assert len(run) == (1 if "--only" in arguments else 2)
    for variant in run:
        memory = found[variant]
        assert memory["answers"]
        assert memory["total_bytes"] == sum(memory[part] for part in PARTS)
        assert processes * 5 * MIB < memory["processes_bytes"] < 8192 * MIB
        if variant == "without":
            assert memory["total_bytes"] == memory["processes_bytes"]
        else:
            assert memory["daemon_bytes"] > MIB
    return found


def processes_of(folder: str) -> Dict[int, str]:
    """The running processes whose arguments name a folder."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It has ended.
        if folder in arguments:
            found[int(path.name)] = arguments
    return found
