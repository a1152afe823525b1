#!/usr/bin/env bash
# test_versions.sh [COMMIT]: tests two builds of the Python package with each other, that of this source and that of COMMIT: clients of
# one with the daemon of the other, and the reverse. COMMIT is by default the parent of the newest commit that changed protocol/: the
# nearest build whose messages differ. That of the commit before this one is often the same program.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-$(git log -1 --format=%H -- protocol)^}
commit=$(git rev-parse --verify --quiet "$commit^{commit}") ||
  { echo "test_versions.sh: the commit $commit is not here; fetch the history" >&2; exit 2; }
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
folder=$target/versions
old=$folder/$commit new=$folder/new
venv=$(scripts/python_environment.sh numpy)

# build FOLDER SOURCE TARGET COMMIT: puts the wheel, and a virtual environment that has it, into FOLDER. Each source needs a target folder
# of its own: Cargo identifies a crate by its path in the workspace, and would take the crates of one source for those of the other.
build() {
  COTENSOR_COMMIT=$4 "$venv/bin/maturin" build --quiet --strip --auditwheel skip --manifest-path "$2/python/Cargo.toml" \
    --target-dir "$3" --out "$1"
  python3 -m venv "$1/env"
  "$1/env/bin/pip" install --quiet --disable-pip-version-check "$(echo "$1"/*.whl)[numpy]"
}

echo "== old: $(git log -1 --format='%h %s' "$commit")"
if [ ! -e "$old/complete" ]; then
  rm -rf "$old" "$folder/source"
  mkdir -p "$folder/source"
  git archive "$commit" | tar x --directory "$folder/source"
  # The files have the time of their commit, which can be older than the last build here.
  find "$folder/source" -type f -exec touch {} +
  build "$old" "$folder/source" "$folder/target" "${commit:0:12}"
  touch "$old/complete"
fi
echo "== new: this source, at $(git log -1 --format='%h %s')"
rm -rf "$new"
build "$new" . "$target" "$(git rev-parse --short=12 HEAD)"
COTENSOR_OLD=$old COTENSOR_NEW=$new "$venv/bin/python" -m pytest -q -ra --timeout 180 --durations=5 -p no:cacheprovider \
  --rootdir tests/versions tests/versions
