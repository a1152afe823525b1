#!/usr/bin/env bash
# Runs python/parity with the arguments: embeddings beside those of sentence-transformers. COTENSOR_PARITY_PYTHON names an interpreter that
# has the packages of python/requirements/torch.txt and `cotensor`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${COTENSOR_PARITY_PYTHON:-}
if [ -z "$python" ]; then
  torch=$(scripts/python_environment.sh torch)
  python=$torch/bin/python
  # The release build, outside the environment of the tests.
  "$torch/bin/pip" install --quiet --disable-pip-version-check --no-deps --upgrade --target target/parity/package ./python
  export PYTHONPATH=$PWD/target/parity/package
fi
# optimum needs an older transformers, so it has an environment of its own; torch's packages come after those.
optimum=$PWD/target/python/optimum
purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
[ -x "$optimum/bin/python" ] || "$python" -m venv "$optimum"
"$optimum/bin/pip" install --quiet --disable-pip-version-check --no-deps -r python/requirements/optimum.txt
# Of the environment that $python belongs to, and of those that it reads.
"$python" -c 'import sys; print(*[path for path in sys.path if path.endswith("site-packages")], sep="\n")' >"$(purelib "$optimum/bin/python")/torch.pth"
export COTENSOR_PARITY_OPTIMUM=$optimum/bin/python
mkdir -p target/parity
# Idle threads of torch must not occupy a core.
export OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error
exec "$python" -W ignore python/parity --work target/parity "$@"
