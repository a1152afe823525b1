#!/usr/bin/env bash
# Builds the crates that a browser will use for wasm32, and runs their unit tests there, in Node.
set -euo pipefail
cd "$(dirname "$0")/.."
crates=(-p cotensor-core -p cotensor-store)
RUSTC=$(scripts/wasm_compiler.sh)
export RUSTC
# Symbol names of a documented form, by which the tests are counted. No crate draws random numbers here.
export RUSTFLAGS='-C symbol-mangling-version=v0 --cfg getrandom_backend="unsupported"'
mapfile -t programs < <(cargo test "${crates[@]}" --lib --no-run --target wasm32-unknown-unknown --target-dir target/wasm \
  --message-format json | node -e '
    const lines = require("fs").readFileSync(0, "utf8").split("\n").filter((line) => line.startsWith("{"));
    for (const { reason, executable } of lines.map(JSON.parse)) if (reason === "compiler-artifact" && executable) console.log(executable);')
node scripts/test_wasm.mjs "${programs[@]}"
