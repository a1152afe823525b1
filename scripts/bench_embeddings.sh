#!/usr/bin/env bash
# Runs first_connect.py, embedding_alone.py, embedding_clients.py, and embeddings.py with the arguments, of python/benches.
# COTENSOR_BENCH_PYTHON names an interpreter that has all packages.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${COTENSOR_BENCH_PYTHON:-}
if [ -z "$python" ]; then
  venv=$(scripts/python_environment.sh bench)
  "$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python
  python=$venv/bin/python
fi
status=0
"$python" python/benches/first_connect.py || status=$?
"$python" python/benches/embedding_alone.py || status=$?
"$python" python/benches/embedding_clients.py || status=$?
"$python" python/benches/embeddings.py "$@" || status=$?
exit $status
