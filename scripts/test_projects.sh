#!/usr/bin/env bash
# test_projects.sh [ARGUMENT …]: runs the tests of other projects with offloaded models. `--help` lists the arguments of python/projects.
# COTENSOR_PROJECTS_PYTHON names an interpreter that has the packages of python/requirements/torch.txt and `cotensor`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${COTENSOR_PROJECTS_PYTHON:-}
if [ -z "$python" ]; then
  venv=$(scripts/python_environment.sh torch)
  (source "$venv/bin/activate" && maturin develop --quiet --manifest-path python/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}")
  python=$venv/bin/python
fi
# The packages of the projects have an environment of their own; torch's come after those.
projects=$PWD/target/python/projects
purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
[ -x "$projects/bin/python" ] || "$python" -m venv "$projects"
"$projects/bin/pip" install --quiet --disable-pip-version-check --no-deps -r python/requirements/projects.txt
# Of the environment that $python belongs to, and of those that it reads.
"$python" -c 'import sys; print(*[path for path in sys.path if path.endswith("site-packages")], sep="\n")' >"$(purelib "$projects/bin/python")/torch.pth"
work=$PWD/target/projects
cd python
# Each process has one thread; idle threads of torch must not occupy a core. Nothing is loaded from a hub.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error
exec nice -n 10 "$projects/bin/python" -m projects --work "$work" "$@"
