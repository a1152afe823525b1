#!/usr/bin/env bash
# gpu.sh test|bench [OPTION]...: tests or figures of the first CUDA device, in under nine minutes once the package is installed. Each part writes its
# results to $OUT (target/gpu without it) as it goes, and a part that fails does not end the others.
#
# test: the questions of scripts/gpu/questions.py, `cotensor doctor`, then the Python tests that need a GPU. OPTIONs are those of pytest.
# bench: the same questions for 100 seconds, python/benches/gpu_memory.py, then python/benches/gpu.py in the time that is left. OPTIONs are those of
# the last.
#
# COTENSOR_BENCH_PYTHON names a Python that has torch and pytest, and runs the package of python/, whose extension must be built; without it, an
# environment is made. See `make test-gpu` and `make bench-gpu`.
set -uo pipefail
cd "$(dirname "$0")/.."
kind=${1:?test or bench}
shift
case $kind in test | bench) ;; *) echo "gpu.sh: test or bench, not $kind" >&2 && exit 2 ;; esac
export OUT=${OUT:-$PWD/target/gpu}
mkdir -p "$OUT"
# All output is in $OUT/test.txt or $OUT/bench.txt, too, line by line.
export PYTHONUNBUFFERED=1
exec > >(tee "$OUT/$kind.txt") 2>&1

status=0
# Runs a part for at most so many seconds. The status is that of the first part that fails.
part() {
  echo "== ${*:2}"
  timeout --kill-after=10 "$1" "${@:2}"
  local ended=$?
  [ "$status" != 0 ] || status=$ended
}

# The questions need Python only, so they come before the package.
case $kind in
  test) part 230 python3 scripts/gpu/questions.py ;;
  bench) part 110 python3 scripts/gpu/questions.py --seconds 100 ;;
esac
if [ "$status" = 3 ]; then
  echo "gpu.sh: no usable NVIDIA driver" >&2
  exit 3
fi

python=${COTENSOR_BENCH_PYTHON:-}
if [ -n "$python" ]; then
  export PYTHONPATH=$PWD/python
else
  venv=$(scripts/python_environment.sh torch) && "$venv/bin/pip" install --quiet --no-deps --force-reinstall ./python || exit 1
  python=$venv/bin/python
fi
SECONDS=0
case $kind in
  test)
    export COTENSOR_TEST_DEVICE=${COTENSOR_TEST_DEVICE:-cuda}
    part 60 "$python" -m cotensor doctor
    tests=(python/tests/test_torch_{device_tensors,producing,tensorref_gpu}.py)
    # With the installed driver in place of the fake one.
    tests+=(python/tests/test_device_tensors.py::test_two_processes_share_one_tensor_whichever_dies)
    part 240 "$python" -m pytest -v -p no:cacheprovider --junitxml="$OUT/tests.xml" "${tests[@]}" "$@"
    ;;
  bench)
    part 200 "$python" python/benches/gpu_memory.py --minutes 2.5
    left=$((420 - SECONDS))
    part "$left" "$python" python/benches/gpu.py --minutes "$((left / 60 - 1))" "$@"
    ;;
esac
exit "$status"
