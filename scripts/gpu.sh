#!/usr/bin/env bash
# gpu.sh test|bench [OPTION]...: runs python/tests/test_torch_tensorref_gpu.py or python/benches/gpu.py on the first CUDA device. The options
# are those of pytest or of the bench. COTENSOR_BENCH_PYTHON names a Python that has torch and pytest, and runs the
# package of python/, whose extension must be built; without it, an environment is made. See `make test-gpu` and `make bench-gpu`.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?test or bench}
shift
python=${COTENSOR_BENCH_PYTHON:-}
if [ -n "$python" ]; then
  export PYTHONPATH=$PWD/python
else
  venv=$(scripts/python_environment.sh torch)
  "$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python
  python=$venv/bin/python
fi
case $kind in
  test) COTENSOR_TEST_DEVICE=${COTENSOR_TEST_DEVICE:-cuda} exec "$python" -m pytest -q -p no:cacheprovider python/tests/test_torch_tensorref_gpu.py "$@" ;;
  bench) exec "$python" python/benches/gpu.py "$@" ;;
  *) echo "gpu.sh: test or bench, not $kind" >&2 && exit 2 ;;
esac
