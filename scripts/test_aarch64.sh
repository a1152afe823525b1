#!/usr/bin/env bash
# test_aarch64.sh: builds the unit tests of the store, its memory, protocol, client and daemon for Linux on aarch64, and runs them in
# qemu's emulator of processes. Fails when fewer than MIN_TESTS tests pass. The emulator uses this machine's kernel with 4 KiB pages.
set -euo pipefail
cd "$(dirname "$0")/.."
MIN_TESTS=270
packages=(cotensor-core cotensor-store cotensor-memory cotensor-rpc cotensor-client cotensor-supervisor cotensor-daemon)
# Tests of what the emulator (qemu 7.2) lacks.
skipped=(
  # madvise does nothing and reports success: no page is populated.
  host::memfd::tests::sealing_publishes_the_used_part_at_the_same_address
  # madvise again: MADV_DONTFORK does not show in smaps.
  host::slab::tests::published_segments_are_read_through_a_read_only_mapping
  # setrlimit ignores RLIMIT_AS, so no mapping is refused.
  host::mapped_file::tests::file_that_cannot_be_mapped_is_removed
)

command -v cargo-nextest >/dev/null || cargo install --locked cargo-nextest
source scripts/aarch64.sh
target=${CARGO_TARGET_DIR:-target}/aarch64
mkdir -p "$target"
export CARGO_PROFILE_DEV_DEBUG=0
printf 'skipped in the emulator: %s\n' "${skipped[@]}"
cargo nextest run --profile emulated --target "$aarch64" --target-dir "$target" --lib "${packages[@]/#/--package=}" \
  --no-tests=fail --no-fail-fast --filterset "not ($(printf 'test(=%s) | ' "${skipped[@]}")none())" 2>&1 | tee "$target/nextest.log"
python3 scripts/check_test_count.py "$target/nextest.log" "$MIN_TESTS"
