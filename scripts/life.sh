#!/usr/bin/env bash
# The life of a mount: servers are killed and replaced under load, and mount(8), fstab and units of systemd mount. What takes no load,
# no mount(8) and no cgroup is in crates/cli/tests.
#
#   scripts/life.sh                 as in `make test`
#   scripts/life.sh --soak          many more rounds
#   scripts/life.sh check_restart   only these
#
# checks.sh has what runs them.
set -euo pipefail
. "$(dirname "$0")/checks.sh"

rounds=6
[ "${1:-}" = --soak ] && { rounds=60; shift; }
tree=${TERRANE_TREE:-/usr/include/linux}

# Ends when "$work/enough" is there; what it says of errors is in its log.
loop() { # name, command...
    local name=$1
    shift
    while [ ! -e "$work/enough" ]; do "$@" 2>>"$work/errors.$name" || { echo "$?" >>"$work/failed.$name"; sleep 0.02; }; done
}

n=0
promise() { # a file of its own, synced, and written down with its sum
    n=$((n + 1))
    head -c $((RANDOM + 1)) /dev/urandom >"$work/bytes.$1"
    dd if="$work/bytes.$1" of="$mnt/kept/$1-$n" bs=8K conv=fsync status=none || return 1
    printf '%s  %s\n' "$(sha256sum <"$work/bytes.$1" | cut -d' ' -f1)" "$1-$n" >>"$work/manifest.$1"
}
overwrite() { dd if=/dev/zero of="$mnt/old" bs=64K count=40 conv=notrunc status=none; }
read_old() { (cd "$mnt/tree" && sha256sum --quiet -c "$work/tree.sums"); }
copy() {
    rm -rf "$mnt/copy"
    cp -a "$mnt/tree" "$mnt/copy" && diff -r --no-dereference "$mnt/tree" "$mnt/copy"
}

under_load() { # function that disturbs
    local job jobs=()
    cp -a "$tree" "$mnt/tree"
    (cd "$mnt/tree" && find . -type f -print0 | xargs -0 sha256sum) >"$work/tree.sums"
    mkdir "$mnt/kept"
    head -c 4M /dev/urandom >"$mnt/old"
    echo nameless >"$mnt/nameless"
    exec 7<"$mnt/nameless"
    rm "$mnt/nameless"
    "$terrane" sync p
    rm -f "$work"/{enough,errors.*,failed.*,manifest.*}
    : >"$work/errors.none"
    set -m
    loop overwrite overwrite & jobs+=($!)
    loop read read_old & jobs+=($!)
    loop promise promise 1 & jobs+=($!)
    loop copy copy & jobs+=($!)
    set +m
    ends_with_check "${jobs[@]/#/-}"
    "$1"
    touch "$work/enough"
    for job in "${jobs[@]}"; do wait "$job" || { say "    a caller hangs or died"; return 1; }; done
    # What users of every neighbour complain about.
    ! grep -hE 'Transport endpoint|connection abort|not connected' "$work"/errors.* || return 1
    [ "$(cat <&7)" = nameless ] || { say "    an open file without a name was lost"; return 1; }
    exec 7<&-
    (cd "$mnt/kept" && sha256sum --quiet -c "$work/manifest.1") || { say "    a promised file is not there"; return 1; }
}

kill_servers() {
    local round before
    for round in $(seq "$rounds"); do
        sleep "0.$((RANDOM % 9 + 1))"
        before=$(server)
        kill -9 "$before"
        # The next one answers, or this waits for ever.
        stat "$mnt/tree" >/dev/null
    done
}

restart_servers() {
    local round
    for round in $(seq "$rounds"); do
        sleep "0.$((RANDOM % 9 + 1))"
        "$terrane" restart p
    done
}

# Killed: what was promised is there, and no program was cut off. What no commit had is lost, and programs that rely on it get an error. So
# the copy and the fsync may fail then, by name; or find the files of an older copy, whose removal is lost.
check_crash() {
    under_load kill_servers
    ! grep -hvE 'Input/output error|Stale file handle|No such file|Directory not empty|File exists|WARNING|FAILED|^Only in|differ|^diff|^[<>-]' \
        "$work"/errors.{promise,copy} || return 1
    # A program that overwrites gets an error once for each server whose changes are lost.
    ! grep -hv 'Input/output error' "$work/errors.overwrite" || return 1
    [ ! -s "$work/failed.read" ] || { cat "$work/errors.read"; return 1; }
    rm -rf "$mnt/copy"
    say "    $rounds servers killed under load, $(wc -l <"$work/manifest.1") files promised and found"
}

# What was stored through a mapping and is lost with a server that keeps no changes for the next one. Other lost changes: crates/cli/tests/lost.rs.
check_lost() {
    "$terrane" umount "$mnt" && "$terrane" mount p "$mnt" -o crashproof=off
    printf 'old' >"$mnt/mapped"
    "$terrane" sync p
    cat >"$work/lost.py" <<'EOT'
import errno, mmap, os, subprocess, sys
mapped = os.open(f'{sys.argv[1]}/mapped', os.O_RDWR)
os.pwrite(mapped, b'lost' * 2000, 0)
subprocess.run(sys.argv[2:], check=True)
page = mmap.mmap(mapped, 3)
# What the kernel writes back, then the fsync.
for content in [b'map', b'MAP']:
    page[:] = content
    try: page.flush()
    except OSError as error: assert error.errno == errno.EIO, error
    else: sys.exit('msync: nobody was told')
page.flush()
page.close()
EOT
    python3 "$work/lost.py" "$mnt" bash -c 'kill -9 "$1"; stat "$2" >/dev/null' - "$(server)" "$mnt"
    [ "$(cat "$mnt/mapped")" = MAP ] || return 1
    # The kernel reports the error of a mapped store once more, to the program that syncs the file system first.
    ! "$terrane" sync p 2>/dev/null || return 1
    "$terrane" sync p
    "$terrane" pool status -v p | grep -q '/mapped: changes lost'
    "$terrane" umount "$mnt" && "$terrane" mount p "$mnt"
}

# Replaced: nothing fails, and nothing is lost, synced or not.
check_restart() {
    under_load restart_servers
    ! cat "$work"/failed.* 2>/dev/null || { cat "$work"/errors.*; return 1; }
    diff -r --no-dereference "$mnt/tree" "$mnt/copy"
    "$terrane" restart --all
    diff -r --no-dereference "$tree" "$mnt/tree"
    say "    $rounds servers replaced under load, $(wc -l <"$work/manifest.1") files synced"
}

# The same where the pool lies on a block device that the mount shows as its source: a successor must not take its own mount for a
# user of the device.
check_crash_on_loop() {
    loop_pool 4G
    rounds=$(((rounds + 1) / 2))
    check_crash
    [ "$(findmnt -n -o SOURCE --raw "$mnt")" = "$device" ] || return 1
}

check_restart_on_loop() {
    loop_pool 4G
    rounds=$(((rounds + 1) / 2))
    check_restart
    local before
    "$work/bin/mount.terrane" p "$mnt" -o remount,ro
    ! touch "$mnt/file" 2>/dev/null || return 1
    before=$(server)
    kill -9 "$before"
    ! touch "$mnt/file" 2>/dev/null || return 1
    "$work/bin/mount.terrane" p "$mnt" -o remount,rw
    echo written >"$mnt/file"
    # Others are refused as before, and told by whom.
    ! "$terrane" pool create other "$device" --force 2>"$work/error" || return 1
    grep -q "process $(server)" "$work/error" || { cat "$work/error"; return 1; }
    [ "$(cat "$mnt/file")" = written ] || return 1
}

# A program that does not run any more: the supervisor starts its own, and the mount goes on.
check_upgrade() {
    "$terrane" umount "$mnt"
    mkdir -p "$work/bin"
    cp "$terrane" "$work/bin/terrane"
    "$work/bin/terrane" mount p "$mnt"
    echo before >"$mnt/file"
    rm "$work/bin/terrane"
    printf '#!/bin/sh\nexit 1\n' >"$work/bin/terrane"
    chmod 755 "$work/bin/terrane"
    "$terrane" restart p
    [ "$(cat "$mnt/file")" = before ] || return 1
    echo after >"$mnt/file"
    # And one whose pool has gone: after some tries callers get an error, and the mount is taken away.
    "$terrane" sync p
    cp --sparse=always "$work/pool.img" "$work/away.img"
    truncate -s 0 "$work/pool.img"
    kill -9 "$(server)"
    ! timeout 120 stat "$mnt/file" 2>"$work/error" || return 1
    grep -qE 'not connected|connection abort' "$work/error" || { cat "$work/error"; return 1; }
    local try
    for try in $(seq 300); do is_mounted "$mnt" || break; sleep 0.1; done
    ! is_mounted "$mnt" || return 1
    chmod 600 "$work/away.img"
    mv "$work/away.img" "$work/pool.img"
    "$terrane" mount p "$mnt"
}

# The supervisor killed as well: no process answers, and the next mount cleans up by itself.
check_stale() {
    local server try
    for try in once again; do
        server=$(server)
        kill -9 "$(supervisor "$server")" "$server"
        ! stat "$mnt/x" 2>"$work/error" || return 1
        grep -qE 'not connected|connection abort|No such file' "$work/error" || { cat "$work/error"; return 1; }
        # The dead server lets go of the device a moment later than kill returns.
        while ! flock -n "$work/pool.img" true; do sleep 0.01; done
        "$terrane" mount p "$mnt"
        echo "$try" >"$mnt/try"
        [ "$(grep -c " $mnt " /proc/self/mounts)" = 1 ] || return 1
    done
}

# Any user who may read a damaged file can cause errors without end; the log has a few of each kind, and the number of the rest.
check_log() {
    command -v python3 >/dev/null || skip 'no python3'
    need_image
    local log=$TERRANE_STATE_DIR/p.log size before at mark=terrane-damage-$RANDOM-$RANDOM
    { head -c 60000 /dev/urandom; printf %s "$mark"; head -c 40000 /dev/urandom; } >"$mnt/damaged"
    "$terrane" umount "$mnt"
    at=$(head -c 1G "$work/pool.img" | tr "\0" "\n" | grep -abo "$mark" | head -n 1 | cut -d: -f1)
    printf T | dd of="$work/pool.img" bs=1 seek="$at" conv=notrunc status=none
    "$terrane" mount p "$mnt"
    size=$(stat -c %s "$log")
    python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(1000):
    try: os.pread(fd, 1000, 0)
    except OSError: pass' "$mnt/damaged"
    size=$(($(stat -c %s "$log") - size))
    [ "$size" -lt 40000 ] || { say "    1000 errors made $size bytes of log"; return 1; }
    # A signal opens it again, for programs that rename it; the mount stands.
    before=$(server)
    mv "$log" "$log.old"
    kill -HUP "$before"
    until [ -e "$log" ] && grep -q 'log reopened' "$log"; do sleep 0.02; done
    kill -HUP "$(supervisor "$before")"
    until [ "$(grep -c 'log reopened' "$log")" -ge 2 ]; do sleep 0.02; done
    [ "$(server)" = "$before" ] || return 1
    for _ in $(seq 50); do [ "$(readlink "/proc/$(supervisor "$before")/fd/2")" = "$log" ] && break; sleep 0.02; done
    [ "$(readlink "/proc/$(supervisor "$before")/fd/2")" = "$log" ] || return 1
    # A long one is moved aside while the mount stands.
    head -c 2M /dev/zero | tr '\0' x >>"$log"
    for _ in $(seq 50); do [ -e "$log.1" ] && break; sleep 0.1; done
    [ "$(stat -c %s "$log")" -lt 100000 ] && [ "$(stat -c %s "$log.1")" -gt 2000000 ] || return 1
    rm "$log.old" "$log.1" "$mnt/damaged"
}

# In a container with little memory: the server takes no more than its cgroup allows, and is not killed.
check_cgroup() {
    is_root || skip 'not root'
    local root=/sys/fs/cgroup/memory limit=memory.limit_in_bytes group before
    [ -e "$root/$limit" ] || { root=/sys/fs/cgroup limit=memory.max; }
    group=$root/terrane-test-$$
    mkdir "$group" 2>/dev/null && [ -w "$group/$limit" ] || { rmdir "$group" 2>/dev/null; skip 'no cgroup with a memory limit can be made'; }
    echo 400M >"$group/$limit"
    # Not in memory: its pages would count as the server's.
    "$terrane" umount "$mnt"
    mkdir -p "${TMPDIR:-/tmp}/terrane-cgroup.$$"
    "$terrane" pool create small "${TMPDIR:-/tmp}/terrane-cgroup.$$/small.img" --size 2G
    bash -c 'echo $$ >"$1/cgroup.procs" && exec "$2" mount small "$3"' - "$group" "$terrane" "$mnt"
    before=$(server)
    [ "$("$terrane" pool status --json small | awk -F '[ ,]+' '$2 == "\"limit\":" { print $3; exit }')" = $((200 << 20)) ] || return 1
    head -c 450M /dev/urandom >"$mnt/file"
    cat "$mnt/file" >/dev/null
    [ "$(server)" = "$before" ] || { say '    the server was killed'; return 1; }
    "$terrane" pool export small
    rm -r "${TMPDIR:-/tmp}/terrane-cgroup.$$"
    local try
    for try in $(seq 50); do rmdir "$group" 2>/dev/null && break; sleep 0.1; done
    "$terrane" mount p "$mnt"
}

# mount(8) and fstab, in a private tree in which the helper is where it belongs.
check_fstab() {
    is_root || skip 'not root'
    "$terrane" umount "$mnt"
    printf '%s %s terrane ro,nofail,_netdev,compression=zstd-3 0 0\n' "$work/pool.img" "$mnt" >"$work/fstab"
    mkdir -p "$work/over/upper" "$work/over/work"
    T=$terrane W=$work M=$mnt unshare --mount --propagation private bash -euc '
        mount -t tmpfs tmpfs "$W/over" && mkdir "$W/over/upper" "$W/over/work"
        mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$W/over/upper,workdir=$W/over/work" /usr/sbin
        for name in mount.terrane mount.fuse.terrane fsck.terrane; do ln -sfn "$T" "/usr/sbin/$name"; done
        if mount -t terrane -o zfsutil "$W/pool.img" "$M" 2>"$W/error"; then exit 1; fi
        grep -q zfsutil "$W/error"
        mount -t terrane -f "$W/pool.img" "$M" && ! mountpoint -q "$M"
        fsck.terrane -a "$W/pool.img" && fsck.terrane -f "$W/pool.img"
        mount -T "$W/fstab" -a
        mount -T "$W/fstab" -a
        [ "$(grep -c " $M " /proc/self/mounts)" = 1 ]
        [ "$(findmnt -n -o SOURCE,FSTYPE --raw "$M")" = "$W/pool.img fuse.terrane" ]
        ! touch "$M/file" 2>/dev/null
        mount -o remount,rw "$M"
        echo written >"$M/file"
        mount -o remount,ro "$M"
        ! touch "$M/file" 2>/dev/null
        mkdir -p "$W/second"
        mount -t terrane -o nosuid "$W/pool.img" "$W/second" -o ro
        cmp "$M/file" "$W/second/file"
        umount "$M"
        grep -q written "$W/second/file"
        umount "$W/second"
    '
    "$terrane" mount p "$mnt"
    [ "$(cat "$mnt/file")" = written ]
}

# Where the file system below is full a pool can still be destroyed.
check_destroy_full() {
    is_root || skip 'not root'
    mkdir "$work/full"
    mount -t tmpfs -o size=80m tmpfs "$work/full"
    (
        trap 'umount "$work/full"' EXIT
        local name way
        for way in '' --delete; do
            name=x${way#--}
            "$terrane" pool create "$name" "$work/full/$name.img" --size 64M
            "$terrane" pool add "$name" cache "$work/full/$name.fast" --size 64M
            ! dd if=/dev/zero of="$work/full/rest" bs=1M 2>/dev/null || return 1
            # shellcheck disable=SC2086
            "$terrane" pool destroy $way "$name"
            [ -z "$way" ] || [ "$(ls "$work/full")" = "$(printf 'rest\nx.fast\nx.img')" ] || { ls "$work/full"; exit 1; }
            ! "$terrane" check "$work/full/$name.img" 2>/dev/null || exit 1
            rm "$work/full/rest"
        done
        "$terrane" pool create again "$work/full/x.img"
        "$terrane" pool destroy again
    )
}

# A write-protected file is mounted read-only, and stays as it is byte for byte.
check_read_only() {
    "$terrane" umount "$mnt"
    fresh_pool 256M
    echo content >"$mnt/file"
    "$terrane" umount "$mnt"
    chmod 444 "$work/pool.img"
    local before
    before=$(sha256sum <"$work/pool.img")
    "$terrane" mount p "$mnt" -o ro
    [ "$(cat "$mnt/file")" = content ] && ! touch "$mnt/file" 2>/dev/null || return 1
    kill -9 "$(server)"
    [ "$(cat "$mnt/file")" = content ] || return 1
    "$terrane" umount "$mnt"
    [ "$(sha256sum <"$work/pool.img")" = "$before" ] || { say "    a read-only mount wrote"; return 1; }
    chmod 644 "$work/pool.img"
    "$terrane" mount p "$mnt"
}

check_units() {
    command -v systemd-analyze >/dev/null || skip 'systemd-analyze is not installed'
    mkdir -p "$work/units"
    cp "$top"/packaging/systemd/* "$top"/packaging/examples/* "$work/units/"
    sed -i "s|/usr/bin/terrane|$terrane|" "$work"/units/*.service
    cp "$work/units/terrane-mount@.service" "$work/units/terrane-mount@tank.service"
    local unit said
    for unit in terrane-mount@tank.service terrane-mounts.service mnt-tank.mount mnt-tank.automount; do
        said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$work/units/$unit" 2>&1) || { echo "$said"; return 1; }
        # It complains about units of this machine as well.
        ! grep -E 'terrane|tank' <<<"$said" || return 1
    done
}

all=(check_crash check_lost check_restart check_upgrade check_stale check_fstab check_destroy_full check_read_only check_crash_on_loop check_restart_on_loop check_cgroup check_log check_units)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
