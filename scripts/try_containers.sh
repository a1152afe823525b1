#!/usr/bin/env bash
# try_containers.sh COTENSOR: containers that share the daemon's socket and nothing else, as in dist/compose.yaml, without a container
# engine. Each container is a set of namespaces (user, mount, PID, IPC, network, UTS) with a root folder of its own. One runs the daemon
# as process 1, one is the producer, one the consumer. Prints a line for each check and ends at the first one that fails.
# Needs unprivileged user namespaces, or root. As root, it also checks that another user is refused.
# COTENSOR is the file of the command. `make try-containers` builds it.
set -euo pipefail
program=${1:?name the file of the command}
[ -x "$program" ] || { echo "try_containers.sh: $program cannot be executed" >&2; exit 2; }
unshare=(unshare --user --map-root-user --mount --pid --fork --kill-child --ipc --net --uts)
path=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if ! refusal=$("${unshare[@]}" env PATH="$path" mount -t proc proc /proc 2>&1); then
  echo "try_containers.sh: this user may not make namespaces: $refusal" >&2
  exit 2
fi

bytes=$((32 << 20))
socket=/run/cotensor/cotensor.sock
environment=(env -i PATH="$path" HOME=/tmp COTENSOR_RUNTIME_DIR=/run/cotensor COTENSOR_AUTOSTART=false)
work=$(mktemp -d)
mkdir -m 0700 "$work/volume"
# A copy, which no build replaces and which every user may run.
cp "$program" "$work/cotensor"
program=$work/cotensor
# By the name of the container: the process that waits for its end.
declare -A containers

finish() {
  local status=$?
  for name in "${!containers[@]}"; do kill_container "$name" 2>/dev/null; done
  wait
  rm -rf "$work"
  exit $status
}
trap finish EXIT

# Runs in the namespaces of a new container. The root is a file system that ends with them: the system's programs and libraries, the
# command, /proc of the container, three devices, and the volume, unless it is empty.
# shellcheck disable=SC2016 # The inner shell expands it.
make_root='set -e
root=$1 volume=$2 program=$3
shift 3
mount -t tmpfs none "$root"
for folder in bin etc lib lib64 nix sbin usr; do
  if [ -L "/$folder" ]; then cp -P "/$folder" "$root/$folder"
  elif [ -d "/$folder" ]; then mkdir "$root/$folder"; mount --rbind "/$folder" "$root/$folder"
  fi
done
mkdir -p "$root/proc" "$root/tmp" "$root/dev/shm" "$root/run/cotensor"
chmod 0700 "$root/run/cotensor"
mount -t proc proc "$root/proc"
mount -t tmpfs none "$root/dev/shm"
for file in /dev/null /dev/zero /dev/urandom; do touch "$root$file"; mount --bind "$file" "$root$file"; done
[ -z "$volume" ] || mount --bind "$volume" "$root/run/cotensor"
touch "$root/cotensor"
mount --bind "$program" "$root/cotensor"
exec chroot "$root" sh -c "echo started; exec \"\$@\"" sh "$@"'

# start NAME VOLUME COMMAND...: a container whose process 1 is the command.
start() {
  local name=$1 volume=$2
  shift 2
  mkdir -p "$work/$name"
  # The shell writes to the log that a process was killed.
  ("${unshare[@]}" "${environment[@]}" sh -c "$make_root" sh "$work/$name" "$volume" "$program" "$@" || exit) \
    </dev/null >"$work/$name.log" 2>&1 &
  containers[$name]=$!
  eventually "container $name starts" grep -q '^started$' "$work/$name.log"
}

child() { tr -d ' ' <"/proc/$1/task/$1/children"; }

# The number of the container's process 1 outside of it: the child of `unshare`.
first() { child "$(child "${containers[$1]}")"; }

# inside NAME COMMAND...: runs a command in a container, as `docker exec` does.
inside() {
  local name=$1
  shift
  nsenter --target "$(first "$name")" --user --preserve-credentials --mount --pid --ipc --net --uts --root --wd "${environment[@]}" "$@"
}

# Ends all processes of a container at once.
kill_container() {
  kill -KILL "$(first "$1")" || true
  wait "${containers[$1]}" || true
  unset "containers[$1]"
}

ok() { printf 'ok    %s\n' "$*"; }

fail() {
  printf 'FAIL  %s\n' "$*"
  tail -n 5 "$work"/*.log
  exit 1
}

# check WHAT COMMAND...: the command succeeds.
check() {
  local what=$1
  shift
  if "$@" >"$work/output" 2>&1; then ok "$what"; else fail "$what: $(cat "$work/output")"; fi
}

# eventually WHAT COMMAND...: the command succeeds within 30 s. Prints nothing unless it does not.
eventually() {
  local what=$1 end=$((SECONDS + 30))
  shift
  until "$@" >"$work/output" 2>&1; do
    [ $SECONDS -lt $end ] || fail "$what: $(cat "$work/output")"
    sleep 0.05
  done
}

# refused WHAT ERROR COMMAND...: the command fails with an error that contains ERROR.
refused() {
  local what=$1 error=$2
  shift 2
  if "$@" >"$work/output" 2>&1; then fail "$what: the command succeeded"; fi
  if grep -qF -- "$error" "$work/output"; then ok "$what: $error"; else fail "$what: $(cat "$work/output")"; fi
}

are_separate() {
  local kind ids
  for kind in user mnt pid ipc net uts; do
    ids=$(for pid in "$(first daemon)" "$(first producer)" "$(first consumer)" self; do readlink "/proc/$pid/ns/$kind"; done)
    [ "$(sort -u <<<"$ids" | wc -l)" = 4 ] || { echo "$ids"; return 1; }
  done
}

# A `cotensor get` that has read nearly all bytes and waits for its pipe, so that it keeps its lease and its mapping.
hold() {
  inside "$1" sh -c "/cotensor get x - --format raw | { head -c $((bytes - (1 << 18))) >/dev/null; exec sleep infinity; }" >/dev/null 2>&1 &
}

# The tensor's memory as the container's processes map it: inode of the memfd, resident and proportional KiB.
mapped() {
  inside "$1" sh -c 'cat /proc/[0-9]*/smaps 2>/dev/null' | awk '
    /^[0-9a-f]+-[0-9a-f]+ / { inode = /memfd:cotensor/ ? $5 : "" }
    /^Rss:/ && inode { rss[inode] += $2 }
    /^Pss:/ && inode { pss[inode] += $2 }
    END { for (each in rss) if (rss[each] > 1024) print each, rss[each], pss[each] }'
}

is_mapped() { [ "$(mapped "$1" | awk '{ print $2 }')" -ge $((bytes * 9 / 10 >> 10)) ]; }
leases() { inside consumer /cotensor who x --json | sed -n 's/^ *"cotensor get": \([0-9]*\).*/\1/p'; }
has_leases() { [ "$(leases)" = "$1" ]; }
sum() { inside "$1" sh -c "$2" 2>>"$work/sum.log" | sha256sum; }
answers() { inside "$1" /cotensor status; }

start daemon "$work/volume" /cotensor serve
start producer "$work/volume" sleep infinity
start consumer "$work/volume" sleep infinity
eventually "the daemon answers" answers consumer
check "the containers have user, mount, PID, IPC, network and UTS namespaces of their own" are_separate
check "the daemon is process 1 of its container" grep -q 'processes 1 (supervisor)' <(answers consumer)
check "the volume has the socket and its lock only" [ "$(ls "$work/volume")" = $'cotensor.sock\ncotensor.sock.lock' ]

inside producer sh -c "head -c $bytes /dev/urandom >/tmp/x.bin"
check "the producer publishes 32 MiB" inside producer /cotensor put x /tmp/x.bin --format raw --dtype uint8 --shape $bytes
check "the consumer lists the tensor" [ "$(inside consumer /cotensor ls --quiet)" = x ]
check "the consumer shows the tensor" grep -q "32.0 MiB ($bytes bytes)" <(inside consumer /cotensor stat x)
written=$(sum producer "cat /tmp/x.bin")
check "the consumer reads equal bytes" [ "$(sum consumer "/cotensor get x - --format raw")" = "$written" ]
check "/dev/shm is empty in both" [ -z "$(inside producer ls /dev/shm; inside consumer ls /dev/shm)" ]

hold producer
hold consumer
for name in producer consumer; do eventually "the $name maps the tensor" is_mapped $name; done
read -r inode resident proportional < <(mapped producer)
read -r other _ _ < <(mapped consumer)
check "both map one memfd (inode $inode)" [ "$inode" = "$other" ]
check "its pages are shared: $resident KiB resident, $proportional KiB proportional in each" [ $((proportional * 10)) -le $((resident * 6)) ]
check "the daemon counts the memory once" grep -q "\"memory_usage_bytes\": $bytes," <(inside consumer /cotensor status --json)
check "each has a lease" has_leases 2

server=$(inside daemon cat /proc/1/task/1/children)
inside daemon kill -KILL "${server% }"
eventually "another server answers" answers consumer
eventually "both leases are resumed" has_leases 2
ok "the server was killed: the next one has the tensor and both leases"

kill_container producer
eventually "the lease of a killed container is released" has_leases 1
ok "the producer's container was killed: its lease is released, the other one is not"
check "the tensor outlives its producer's container" [ "$(sum consumer "/cotensor get x - --format raw")" = "$written" ]

refused "a second daemon on the volume" "another daemon" inside consumer /cotensor serve
start separate "" sleep infinity
refused "a container without the volume" "$socket: no daemon answers here" inside separate /cotensor ls
if [ "$(id -u)" = 0 ]; then
  chmod 0711 "$work"
  refused "a container of another user" "the socket or its folder is another user's" setpriv --reuid 65533 --regid 65533 --clear-groups \
    "${unshare[@]}" "${environment[@]}" "$program" ls --socket "$work/volume/cotensor.sock"
else
  echo "skip  a container of another user: only root can start one"
fi

kill_container daemon
refused "the daemon's container was killed" "$socket: no daemon answers here" inside consumer /cotensor ls
start daemon "$work/volume" /cotensor serve
eventually "the next daemon answers" answers consumer
check "the next daemon on the volume has no tensors" [ -z "$(inside consumer /cotensor ls --quiet)" ]
kill -TERM "$(first daemon)"
check "SIGTERM ends the daemon's container" wait "${containers[daemon]}"
unset "containers[daemon]"
check "its socket is removed" [ ! -e "$work/volume/cotensor.sock" ]
