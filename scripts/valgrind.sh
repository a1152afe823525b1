#!/usr/bin/env bash
# Runs the memory crate's unit tests under valgrind. Fails on any invalid access or definite leak. The skipped tests of CUDA memory, whose names end in `on_purpose`, leak: their memory must stay.
# A leak also fails the test of `detach`, whose forked process reports it at its end.
set -euo pipefail
cd "$(dirname "$0")/.."
# The test binary of `make unit`: another selection of packages or targets would compile the dependencies again.
binary=$(cargo nextest list --workspace --list-type binaries-only --message-format json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["rust-binaries"]["cotensor-memory"]["binary-path"])')
valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
  --show-leak-kinds=definite "$binary" --test-threads=1 --skip arbitrary_bytes --skip returns_descriptor \
  --skip on_purpose
