#!/usr/bin/env bash
# Installs the package onnxruntime in an environment of its own below target/python, and prints the path of its library.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(scripts/python_environment.sh onnxruntime)
ls "$venv"/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.*
