#!/usr/bin/env bash
# Builds the browser's crates for wasm32, and runs their tests in Node: unit tests, and the integration tests of cotensor-preprocess,
# whose fixtures are compiled in.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTC=$(scripts/cross_compiler.sh wasm32-unknown-unknown)
export RUSTC
# test_wasm.mjs counts tests by their symbol names, which have a documented form only in v0. The tests define the source of random
# numbers.
export RUSTFLAGS='-C symbol-mangling-version=v0 --cfg getrandom_backend="custom"'
programs() {
  cargo test "$@" --no-run --target wasm32-unknown-unknown --target-dir target/wasm --message-format json | node -e '
    const lines = require("fs").readFileSync(0, "utf8").split("\n").filter((line) => line.startsWith("{"));
    for (const { reason, executable } of lines.map(JSON.parse)) if (reason === "compiler-artifact" && executable) console.log(executable);'
}
units=$(programs -p cotensor-core -p cotensor-graph -p cotensor-pipeline -p cotensor-placement -p cotensor-quant -p cotensor-store --lib)
preprocess=$(programs -p cotensor-preprocess --lib --test integration)
mapfile -t all <<<"$units"$'\n'"$preprocess"
node scripts/test_wasm.mjs "${all[@]}"
