#!/usr/bin/env bash
# aarch64.sh: to be sourced, in the root of the repository. Sets what Cargo needs to build for Linux on aarch64 and to run the programs:
# a compiler, Debian's linker, and qemu's emulator of processes (the static one, which runs in other systems, too). Installs the packages
# when run as root on Debian and they are missing.
aarch64="aarch64-unknown-linux-gnu"
missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
command -v aarch64-linux-gnu-g++ >/dev/null || missing+=(g++-aarch64-linux-gnu)
emulator_aarch64=qemu-aarch64-static
command -v "$emulator_aarch64" >/dev/null || missing+=(qemu-user-static)
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "aarch64.sh: install the packages ${missing[*]}" >&2
    exit 1
  fi
  install() { apt-get install --yes --quiet --no-install-recommends "${missing[@]}" >&2; }
  install || { apt-get update --quiet >&2 && install; }
fi
run_aarch64=("$emulator_aarch64" -L /usr/aarch64-linux-gnu)
RUSTC=$(scripts/cross_compiler.sh "$aarch64")
export RUSTC CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="${run_aarch64[*]}"
