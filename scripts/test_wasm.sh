#!/usr/bin/env bash
# Builds the crates that a browser will use for wasm32, and runs their tests there, in Node: unit tests, and the integration
# tests of the crate whose fixtures are compiled in.
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTC=$(scripts/wasm_compiler.sh)
export RUSTC
# Symbol names of a documented form, by which the tests are counted. The tests define the source of random numbers.
export RUSTFLAGS='-C symbol-mangling-version=v0 --cfg getrandom_backend="custom"'
programs() {
  cargo test "$@" --no-run --target wasm32-unknown-unknown --target-dir target/wasm --message-format json | node -e '
    const lines = require("fs").readFileSync(0, "utf8").split("\n").filter((line) => line.startsWith("{"));
    for (const { reason, executable } of lines.map(JSON.parse)) if (reason === "compiler-artifact" && executable) console.log(executable);'
}
units=$(programs -p cotensor-core -p cotensor-store --lib)
preprocess=$(programs -p cotensor-preprocess --lib --test integration)
mapfile -t all <<<"$units"$'\n'"$preprocess"
node scripts/test_wasm.mjs "${all[@]}"
