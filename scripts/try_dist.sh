#!/usr/bin/env bash
# try_dist.sh: installs the files of target/dist in a new Debian system, as a user does, and uses them: the command, and the wheel without
# torch (try_dist_as_user.sh), and what a new user does with a real encoder (first_hour_as_user.sh). On x86-64, qemu's emulator of processes
# runs the files for aarch64 in a second system, without the encoder.
# Needs user namespaces, and on x86-64 binfmt_misc in them (Linux 6.7).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${CARGO_TARGET_DIR:-target}/dist
(cd "$out" && sha256sum --check --quiet SHA256SUMS)

# Runs in new namespaces, so that no process and no mount outlives the trial. The third argument is an entry of binfmt_misc, with which
# the kernel starts programs of another processor in the emulator. The flag F opens the emulator's file outside of the system. The system
# has no /sys: onnxruntime for aarch64 reads this machine's processors there, and ends with SIGSEGV.
# shellcheck disable=SC2016 # The inner shell expands it.
in_system='set -e
root=$1 minutes=$2 emulator=$3
mount --rbind /dev "$root/dev"
mount -t tmpfs none "$root/dev/shm"
mount -t proc proc "$root/proc"
if [ -n "$emulator" ]; then
  mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
  echo "$emulator" >/proc/sys/fs/binfmt_misc/register
fi
exec timeout --foreground "${minutes}m" unshare --user --map-user=1000 --map-group=1000 --root="$root" --wd=/home/user \
  env -i HOME=/home/user PATH=/usr/local/bin:/usr/bin:/bin bash -c "set -e; for script in *_as_user.sh; do bash ./\$script; done"'

# try PROCESSOR DEBIAN MINUTES EMULATOR: DEBIAN is the name that Debian has for the processor.
try() {
  local processor=$1 debian=$2 minutes=$3 emulator=$4 root home wheel start=$SECONDS
  root=${DIST_ROOT:-$PWD/target/dist-root}-$debian
  home=$root/home/user
  echo "== the files for $processor${emulator:+, emulated}"
  # numpy and onnxruntime need libstdc++6.
  scripts/debian_system.sh "$debian" "$root" bash coreutils diffutils grep gzip libstdc++6 python3 python3-venv tar
  rm -rf "${home:?}"/* "${root:?}"/tmp/*
  cp scripts/try_dist_as_user.sh "$out"/cotensor-*-"$processor"-*.tar.gz "$out"/*_"$processor".whl "$home/"
  cp -r fixtures/tiny/bert "$home/model"
  if [ -z "$emulator" ]; then
    scripts/encoder.sh "${CARGO_TARGET_DIR:-target}/first-hour/encoder" "${CARGO_TARGET_DIR:-target}/first-hour/wheels"
    cp -r scripts/first_hour_as_user.sh "${CARGO_TARGET_DIR:-target}/first-hour/encoder" "$home/"
  fi
  # What the wheel's extras name, for the system's Python, downloaded before the time is taken.
  wheel=$(basename "$home"/*.whl .whl)
  wheel=${wheel##*-}
  # shellcheck disable=SC2046 # One option for each platform of the wheel.
  "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.11 --implementation cp \
    $(printf -- '--platform %s ' ${wheel//./ } {manylinux_2_28,manylinux_2_27,manylinux2014}_"$processor") \
    --dest "$home/packages" "$(echo "$home"/*.whl)[numpy,onnxruntime]"
  unshare --user --map-root-user --mount --pid --fork --kill-child bash -c "$in_system" bash "$root" "$minutes" "$emulator" </dev/null
  echo "== $processor: all done in $((SECONDS - start)) s"
}

processor=$(uname -m)
case $processor in
  x86_64) try x86_64 amd64 5 '' ;;
  aarch64) try aarch64 arm64 5 '' ;;
  *) echo "try_dist.sh: no system is known for $processor" >&2; exit 2 ;;
esac
if [ "$processor" = x86_64 ]; then
  source scripts/aarch64.sh
  # The header of an ELF file: 64 bits, least significant byte first, a program or library for aarch64.
  magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  try aarch64 arm64 20 ":aarch64:M::$magic:$mask:$(command -v "$emulator_aarch64"):F"
fi
