#!/usr/bin/env bash
# workspace_cargo.sh ARGUMENTS: cargo for maturin, as CARGO=scripts/workspace_cargo.sh. It builds the extension as a part of the workspace, with the
# features of the workspace's tests. A build of its package alone chooses fewer features of tokio, rustix, blake3 and others, so that it would compile
# nearly all dependencies again.
set -euo pipefail
# Build scripts and later builds must not see this file as cargo.
unset CARGO
[ "${1:-}" = rustc ] || exec cargo "$@"
shift
# maturin's arguments name the library and the feature of its package. Examples, because dependencies of tests count for them.
exec cargo build --workspace --bins --examples "$@"
