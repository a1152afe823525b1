#!/usr/bin/env bash
# decoder.sh FOLDER: makes the folder of a small decoder that is trained on the documents, and texts to measure it (fixtures/scripts/train_decoder.py), in
# the environment of the tests with torch. Takes two minutes of one core.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "$1")
[ ! -e "$folder/onnx/complete" ] || exit 0
python=$(scripts/python_environment.sh torch)/bin/python
rm -rf "$folder"
"$python" fixtures/scripts/train_decoder.py "$folder" >&2
touch "$folder/onnx/complete"
