#!/usr/bin/env bash
# try_dist.sh: installs the files of target/dist in a new Debian system, as a user does, and uses them: the command, and the wheel
# without torch. Runs the command for aarch64 in qemu's emulator of processes. Needs root and the packages debootstrap and, on x86-64,
# qemu-user. DIST_MIRROR names a mirror of Debian's packages (default: this machine's).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${CARGO_TARGET_DIR:-target}/dist
root=${DIST_ROOT:-$PWD/target/dist-root}
[ "$(id -u)" = 0 ] || { echo "try_dist.sh: run it as root: it makes a system in $root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "try_dist.sh: install the package debootstrap" >&2; exit 2; }
(cd "$out" && sha256sum --check --quiet SHA256SUMS)

if [ "$(uname -m)" = x86_64 ]; then
  source scripts/aarch64.sh
  echo "== the tarball for aarch64, emulated"
  folder=$(mktemp -d)
  tar xzf "$out"/cotensor-*-"$aarch64".tar.gz --directory "$folder" --strip-components=1
  "${run_aarch64[@]}" "$folder/bin/cotensor" version
  rm -r "$folder"
fi

# Fails for a missing one of the two files.
mirrors=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)*\(\S*\) .*/\2/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true)
mirror=${DIST_MIRROR:-${mirrors%%$'\n'*}}
if [ ! -x "$root/usr/bin/python3" ]; then
  rm -rf "$root"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" "$mirror" >/dev/null
  chroot "$root" useradd --create-home user
fi
home=$root/home/user
rm -rf "${home:?}"/*
cp "$out"/*-"$(uname -m)"-*.tar.gz "$out"/*_"$(uname -m)".whl "$home/"
cp -r fixtures/tiny/bert "$home/model"
# The only packages that the wheel's users install beside it, downloaded before the time is taken.
"${PYTHON:-python3}" -m pip download --quiet --only-binary :all: --python-version 3.11 --dest "$home/packages" numpy onnxruntime
cat >"$home/try.sh" <<'INSIDE'
set -euo pipefail
cd ~
export XDG_CACHE_HOME=$HOME/cache

echo "== the tarball"
tar xzf cotensor-*.tar.gz
export PATH=$HOME/$(basename cotensor-*.tar.gz .tar.gz)/bin:$PATH
cotensor version
cotensor doctor || true
printf '\0\0\200?\0\0\0@' >two.bin
cotensor put two two.bin --dtype float32 --shape 2
cotensor get two again.raw && cmp two.bin again.raw
cotensor embed model "a text" | grep -q '"embedding":'
cotensor models ps
cotensor stop
ls cotensor-*/share/completions cotensor-*/share/systemd

echo "== the wheel, without torch"
PATH=/usr/local/bin:/usr/bin:/bin
start=$(date +%s%N)
python3 -m venv env
env/bin/pip install --quiet --no-index --find-links packages cotensor-*.whl numpy onnxruntime
env/bin/python - <<'PYTHON'
import cotensor
embedder = cotensor.Embedder("/home/user/model")
print(embedder.embed(["a text", "another"]).shape)
PYTHON
echo "installed, and the first shared model used, after $((($(date +%s%N) - start) / 1000000)) ms"
env/bin/cotensor models ps
env/bin/cotensor stop
INSIDE
chroot "$root" chown -R user:user /home/user
# Namespaces of its own, so that no process of the trial outlives it.
unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" chroot "$root" \
  /bin/bash -c "mount -t devtmpfs none /dev 2>/dev/null || true; mount -t tmpfs tmpfs /dev/shm 2>/dev/null || true; su user -s /bin/bash -c 'bash ~/try.sh'"
