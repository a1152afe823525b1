#!/usr/bin/env bash
# Runs the memory crate's unit tests under valgrind; any invalid access or definite leak fails.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(cargo test -p cotensor-memory --lib --no-run --message-format=json 2>/dev/null |
  python3 -c 'import json,sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message.get("target", {}).get("name") == "cotensor_memory": print(message["executable"])' | tail -1)
test -x "$binary"
valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
  --show-leak-kinds=definite "$binary" --test-threads=1 --skip arbitrary_bytes --skip returns_descriptor
