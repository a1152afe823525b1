#!/usr/bin/env bash
# Runs python/benches/embeddings.py, with its arguments. COTENSOR_BENCH_PYTHON names an interpreter that has all packages.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${COTENSOR_BENCH_PYTHON:-}" ]; then exec "$COTENSOR_BENCH_PYTHON" python/benches/embeddings.py "$@"; fi
venv=$(scripts/python_environment.sh bench)
"$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python
exec "$venv/bin/python" python/benches/embeddings.py "$@"
