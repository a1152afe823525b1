#!/usr/bin/env bash
# wasm_compiler.sh [FOLDER]: prints the path of a compiler for wasm32-unknown-unknown. This is rustup's if it has the target or
# can fetch it. Otherwise it is Debian's rustc-web in FOLDER, with a standard library built from source (about two minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
target=wasm32-unknown-unknown
installed=$(rustc --print sysroot)/lib/rustlib/$target
if [ -d "$installed" ] || timeout 60 rustup --quiet target add "$target" >/dev/null 2>&1; then
  rustup which rustc
  exit
fi

folder=$(realpath -m "${1:-target/wasm-compiler}")
sysroot=$folder/usr
compiler=$sysroot/bin/rustc
library=$sysroot/lib/rustlib/$target/lib
if [ -x "$compiler" ] && compgen -G "$library/libstd-*.rlib" >/dev/null; then
  echo "$compiler"
  exit
fi

echo "rustup has no $target: preparing Debian's compiler in $folder" >&2
rm -rf "$folder"
mkdir -p "$folder/packages" "$library"
if [ "$(id -u)" = 0 ]; then apt-get -qq update >&2; fi
depends() { apt-cache show "$1" | sed -n 's/^Depends: //p' | head -1 | grep -o "$2" | head -1; }
version=$(apt-cache policy rustc-web | sed -n 's/ *Candidate: //p')
std=$(depends "libstd-rust-web-dev=$version" 'libstd-rust-web-[0-9.]*')
llvm=$(depends "$std=$version" 'libllvm[0-9]*')
(
  cd "$folder/packages"
  apt-get -qq download "rustc-web=$version" "$std=$version" "libstd-rust-web-dev=$version" "rust-web-src=$version" "$llvm" >&2
  for package in *.deb; do dpkg -x "$package" "$folder"; done
)
rm -r "$folder/packages"

# Debian's compiler needs Debian's LLVM, and rustup's linker for this target.
mv "$compiler" "$compiler.bin"
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$sysroot/lib/x86_64-linux-gnu" "$compiler.bin" >"$compiler"
chmod +x "$compiler"
tools=lib/rustlib/x86_64-unknown-linux-gnu/bin
mkdir -p "$sysroot/$tools"
ln -sf "$(rustc --print sysroot)/$tools/rust-lld" "$sysroot/$tools/rust-lld"

# Builds the standard library once, into the compiler's folder, so that later builds need no unstable option.
seed=$folder/seed
mkdir -p "$seed/src"
touch "$seed/src/lib.rs"
printf '[package]\nname = "seed"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n' >"$seed/Cargo.toml"
RUSTC=$compiler RUSTC_BOOTSTRAP=1 cargo build --quiet --release --manifest-path "$seed/Cargo.toml" --target-dir "$seed/target" \
  --target "$target" -Zbuild-std=std,panic_abort,proc_macro,test >&2
find "$seed/target/$target/release/deps" -name 'lib*.rlib' ! -name 'libseed*' -exec cp {} "$library/" \;
rm -rf "$seed" "$sysroot/share"
"$compiler" --version >&2
echo "$compiler"
