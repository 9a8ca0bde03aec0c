# Sourced by the suites that run on a real mount: each `check_*` function of theirs is a promise, and gets a fresh pool,
# mounted at $mnt. The pool is checked after each.
#
# The pool lies in a file, or on the device $TERRANE_POOL_DEVICE, whose content is lost.
#
# Sets $suite (mounted, suites) from the script's name, $work, $mnt. A check that cannot run here calls `skip`: it is counted, and
# said with its reason.

. "$(dirname "${BASH_SOURCE[0]}")/pool.sh"
in_own_namespace "$0" "$@"
suite=$(basename "$0" .sh)

if ! can_mount; then
    loud "SKIPPED: $suite need /dev/fuse, which cannot be opened here"
    echo "$suite: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
[ -x "$terrane" ] || build_terrane

work=$(work_dir)
mnt=$work/mnt
export TERRANE_STATE_DIR=$work/state
mkdir -p "$mnt" "$TERRANE_STATE_DIR"
# What a check started, with the time at which it did: numbers come back soon where there are 32768 of them, and another process that has
# one by the end of the check is not ours.
started=()
began() { sed 's/.*) //' "/proc/${1#-}/stat" 2>/dev/null | cut -d ' ' -f 20 || true; }
ends_with_check() { # process ids, or groups with - in front
    local pid
    for pid in "$@"; do started+=("$pid $(began "$pid")"); done
}
end_started() {
    local one pid time
    for one in "${started[@]}"; do
        read -r pid time <<<"$one"
        [ -z "$time" ] || [ "$(began "$pid")" != "$time" ] || kill -9 -- "$pid" 2>/dev/null || true
    done
    # Other mounts of the check: those of other machines, and an ext4. The last one may lie in another.
    local dir device
    for dir in $(awk -v work="$work/" -v mnt="$mnt" 'index($5, work) == 1 && index($5 "/", mnt "/") != 1 { print $5 }' /proc/self/mountinfo | tac); do
        unmount "$dir"
    done
    # One that is still in use goes with its last user.
    for device in $(losetup -n -O NAME -j "$work/loop.img" 2>/dev/null); do losetup -d "$device"; done
}
running=
cleanup() {
    # The check ends what it started.
    [ -z "$running" ] || { kill "$running" 2>/dev/null && wait "$running" 2>/dev/null; } || true
    unmount "$mnt"
    is_mounted "$mnt" || rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fresh_pool() { # size, words for create...
    local size=$1
    shift
    rm -f "$work/pool.img" "$TERRANE_STATE_DIR/pools"
    if [ -n "${TERRANE_POOL_DEVICE:-}" ]; then
        "$terrane" pool create p "$TERRANE_POOL_DEVICE" --force "$@" >/dev/null
    else
        "$terrane" pool create p "$work/pool.img" --size "$size" "$@" >/dev/null
    fi
    "$terrane" mount p "$mnt"
}

# In place of the fresh pool one on a loop device, mounted by the device's path: so does a line of fstab.
loop_pool() { # size, words for mount.terrane...
    is_root && command -v losetup >/dev/null || skip 'loop devices need root and losetup'
    local size=$1
    shift
    "$terrane" umount "$mnt"
    "$terrane" pool destroy --delete p
    rm -f "$work/loop.img"
    truncate -s "$size" "$work/loop.img"
    device=$(losetup -f --show "$work/loop.img" 2>/dev/null) || skip 'no loop device can be made'
    "$terrane" pool create p "$device" --force -o compression=zstd-3 >/dev/null
    mkdir -p "$work/bin"
    ln -sf "$terrane" "$work/bin/mount.terrane"
    "$work/bin/mount.terrane" "$device" "$mnt" "$@"
}

# With other words, or again: what the kernel remembers is gone then.
mount_again() { # words after -o...
    "$terrane" umount "$mnt"
    "$terrane" mount p "$mnt" "${@/#/-o}"
}

# The daemon in front, so that its process id is ours to kill.
mount_in_front() { # words after -o...
    "$terrane" mount p "$mnt" -f "${@/#/-o}" >>"$work/daemon.log" 2>&1 &
    daemon=$!
    ends_with_check "$daemon"
    local tries
    # A minute: after a kill the intent log is replayed, maybe on a slow disk. A daemon that ended is not waited for.
    for tries in $(seq 1200); do
        is_mounted "$mnt" && return
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.05
    done
    cat "$work/daemon.log"
    return 1
}

# The server of the mount; the supervisor is its parent.
server() { "$terrane" mounts -H -p | awk -F '\t' -v dir="$mnt" '$2 == dir { print $6 }'; }
supervisor() { awk '/^PPid:/ { print $2 }' "/proc/$1/status"; }

# The same seeds for the same commit, others for the next.
seed_base() { echo $((16#$(printf '%s' "${TERRANE_SEED_BASE:-1}" | sha256sum | head -c 6))); }

# A program of 80 files for make.
c_project() { # directory
    local i dir=$1
    mkdir -p "$dir/src"
    for i in $(seq 80); do
        printf '#include <stdio.h>\n#include <string.h>\nint part%d(int x) { char b[64]; snprintf(b, sizeof b, "%%d", x + %d); return (int)strlen(b) + x; }\n' "$i" "$i" >"$dir/src/part$i.c"
    done
    {
        seq -f 'int part%.0f(int);' 80
        echo 'int main(void) { int x = 0;'
        seq -f 'x = part%.0f(x);' 80
        echo 'return x == 0; }'
    } >"$dir/src/main.c"
    cat >"$dir/Makefile" <<'EOT'
objects := $(patsubst src/%.c,out/%.o,$(wildcard src/*.c))
out/program: out/libparts.a out/main.o ; cc -o $@ out/main.o out/libparts.a
out/libparts.a: $(filter-out out/main.o,$(objects)) ; ar rcs $@ $^
out/%.o: src/%.c | out ; cc -O1 -c -o $@ $<
out: ; mkdir -p out
EOT
}

# Ends the check that calls it.
skip() { # why
    say "    skipped: $*"
    exit 77
}

# For what looks at the pool's file.
need_image() { [ -z "${TERRANE_POOL_DEVICE:-}" ] || skip "the pool lies on a device"; }

is_root() { [ "$(id -u)" = 0 ]; }
have() { command -v "$1" >/dev/null || skip "$1 is not installed"; }

# At $work/ext4, for what is judged beside Terrane.
ext4_on_loop() { # size, words for mkfs.ext4...
    local size=$1
    shift
    command -v mkfs.ext4 >/dev/null || return 1
    rm -f "$work/ext4.img"
    truncate -s "$size" "$work/ext4.img"
    mkfs.ext4 -q -F "$@" "$work/ext4.img"
    mkdir -p "$work/ext4"
    mount -o loop "$work/ext4.img" "$work/ext4" 2>/dev/null
}

# What the servers of a check complained of, in the background or in front.
servers_said() {
    cat "$TERRANE_STATE_DIR"/*.log "$work/daemon.log" 2>/dev/null | grep -v ' level=info ' | tail -n 5 | sed 's/^/server: /' || true
}

# Many a line fails without a word: it is told where the check stood. To be called first when a shell ends, for its own commands count.
stood=(- -) newline=$'\n'
follow() {
    set -T
    trap 'stood=("${stood[1]}" "${BASH_SOURCE[0]##*/}:$LINENO: ${BASH_COMMAND%%"$newline"*}")' DEBUG
}

run_checks() { # names...
    local check begin status passed=0 skipped=0 failed=()
    for check in "$@"; do
        begin=$SECONDS status=0
        printf '%-20s' "$check"
        rm -f "$TERRANE_STATE_DIR"/*.log "$work/daemon.log"
        # A shell of its own that stops at the first thing that goes wrong, and ends what it started. Not in an `if`: there bash
        # would go on after errors.
        (
            set -e
            trap 'status=$? at=${stood[0]}; [ $status = 0 ] || [ $status = 77 ] || say "at $at"; end_started' EXIT
            trap 'exit 143' TERM
            follow
            fresh_pool 4G -o compression=zstd-3
            "$check"
            "$terrane" umount "$mnt"
            "$terrane" check p
        ) >"$work/log" 2>&1 &
        running=$!
        wait "$running" || status=$?
        running=
        case $status in
            0)
                passed=$((passed + 1))
                printf 'ok    %4d s\n' $((SECONDS - begin))
                grep '^    ' "$work/log" || true
                continue
                ;;
            77)
                skipped=$((skipped + 1))
                printf 'SKIPPED\n'
                loud "$check $(grep '^    skipped: ' "$work/log" | sed 's/^ *//')"
                ;;
            *)
                failed+=("$check")
                printf 'FAILED after %d s\n' $((SECONDS - begin))
                { servers_said; tail -n 40 "$work/log"; } | sed 's/^/    /'
                [ -z "${TERRANE_KEEP:-}" ] || [ -n "${TERRANE_POOL_DEVICE:-}" ] || {
                    cp --sparse=always "$work/pool.img" "$TERRANE_KEEP/$check.img" && say "    kept $TERRANE_KEEP/$check.img"
                }
                ;;
        esac
        # Data sets that the check mounted elsewhere, too.
        "$terrane" umount -a p >/dev/null 2>&1 || true
        unmount "$mnt"
    done
    echo "$suite: $passed passed, ${#failed[@]} failed, $skipped skipped${failed:+ (${failed[*]})}"
    [ ${#failed[@]} = 0 ]
}

# What fsx does, and how often. Of length 0, posix_fallocate must be refused, which fsx does not expect: none at the end of the file.
fsx_config() { # weight of fsync and of fdatasync
    cat <<EOT
flen = 1048576
[opsize]
min = 1
max = 131072
[weights]
close_open = 2
invalidate = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 4
fsync = $1
fdatasync = $1
posix_fallocate = 2
punch_hole = 4
copy_file_range = 4
EOT
}
