#!/usr/bin/env bash
# cross_compiler.sh TARGET [FOLDER]: prints the path of a compiler that builds for this machine and for TARGET, which is
# wasm32-unknown-unknown or aarch64-unknown-linux-gnu. This is rustup's if it has the target or can fetch it. Otherwise it is Debian's
# rustc-web in FOLDER. The standard library for wasm32 is then built from source (about two minutes); that for aarch64 is Debian's.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?wasm32-unknown-unknown or aarch64-unknown-linux-gnu}
case $target in
  wasm32-unknown-unknown | aarch64-unknown-linux-gnu) ;;
  *) echo "cross_compiler.sh: no standard library is known for $target" >&2; exit 2 ;;
esac
installed=$(rustc --print sysroot)/lib/rustlib/$target
if [ -d "$installed" ] || timeout 60 rustup --quiet target add "$target" >/dev/null 2>&1; then
  rustup which rustc
  exit
fi

folder=$(realpath -m "${2:-target/cross-compiler}")
mkdir -p "$folder"
# One process prepares the folder at a time.
exec 9>"$folder/lock"
flock 9
sysroot=$folder/usr
compiler=$sysroot/bin/rustc
version=$(cat "$folder/version" 2>/dev/null || true)

# Downloads packages with the given options of apt-get, and unpacks them into the folder.
unpack() {
  local packages=$folder/packages package
  mkdir -p "$packages"
  (cd "$packages" && apt-get -qq "$@" 2> >(grep -v 'unsandboxed as root' >&2))
  for package in "$packages"/*.deb; do dpkg -x "$package" "$folder"; done
  rm -r "$packages"
}

# The compiler, with the standard library for this machine.
prepare_compiler() {
  local std llvm tools=lib/rustlib/x86_64-unknown-linux-gnu/bin
  if [ "$(id -u)" = 0 ]; then apt-get -qq update >&2; fi
  depends() { apt-cache show "$1" | sed -n 's/^Depends: //p' | head -1 | grep -o "$2" | head -1; }
  version=$(apt-cache policy rustc-web | sed -n 's/ *Candidate: //p')
  std=$(depends "libstd-rust-web-dev=$version" 'libstd-rust-web-[0-9.]*')
  llvm=$(depends "$std=$version" 'libllvm[0-9]*')
  rm -rf "$sysroot" "$folder"/*-unknown-*
  unpack download "rustc-web=$version" "$std=$version" "libstd-rust-web-dev=$version" "$llvm"

  # Debian's compiler needs Debian's LLVM, and rustup's linker for wasm32.
  mv "$compiler" "$compiler.bin"
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$sysroot/lib/x86_64-linux-gnu" "$compiler.bin" >"$compiler"
  chmod +x "$compiler"
  mkdir -p "$sysroot/$tools"
  ln -sf "$(rustc --print sysroot)/$tools/rust-lld" "$sysroot/$tools/rust-lld"
  rm -rf "$sysroot/share"
  echo "$version" >"$folder/version"
}

# Debian's package for arm64 has the standard library that the same version of the compiler built. Lists of packages of its own spare
# the system a foreign architecture.
prepare_aarch64() {
  local apt=$folder/apt
  mkdir -p "$apt"/{lists,cache/archives}/partial
  local options=(-o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache")
  apt-get -qq "${options[@]}" update >&2
  unpack "${options[@]}" download "libstd-rust-web-dev:arm64=$version"
  rm -rf "$apt" "$sysroot/share"
}

# Builds the standard library once, into the compiler's folder, so that later builds need no unstable option.
prepare_wasm32() {
  local seed=$folder/seed library=$sysroot/lib/rustlib/$target/lib
  unpack download "rust-web-src=$version"
  mkdir -p "$seed/src" "$library"
  touch "$seed/src/lib.rs"
  printf '[package]\nname = "seed"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n' >"$seed/Cargo.toml"
  RUSTC=$compiler RUSTC_BOOTSTRAP=1 cargo build --quiet --release --manifest-path "$seed/Cargo.toml" --target-dir "$seed/target" \
    --target "$target" -Zbuild-std=std,panic_abort,proc_macro,test >&2
  find "$seed/target/$target/release/deps" -name 'lib*.rlib' ! -name 'libseed*' -exec cp {} "$library/" \;
  rm -rf "$seed" "$sysroot/share" "$sysroot/src"
}

if [ -z "$version" ]; then
  echo "rustup has no $target: preparing Debian's compiler in $folder" >&2
  prepare_compiler
fi
if [ ! -e "$folder/$target" ]; then
  case $target in
    wasm32-*) prepare_wasm32 ;;
    aarch64-*) prepare_aarch64 ;;
  esac
  "$compiler" --version >&2
  touch "$folder/$target"
fi
echo "$compiler"
