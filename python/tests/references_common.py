"""Runs programs with references: importing the module changes torch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_START = """
import torchTensorRef
import torch
"""


def run(program):
    """Runs a program in a process of its own. Returns its output."""
    with tempfile.TemporaryDirectory() as folder:
        # A file, because TorchScript reads the source.
        path = Path(folder) / "program.py"
        path.write_text(_START + program)
        ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
