#!/usr/bin/env bash
# What fsync costs beside ext4, xfs, btrfs and zfs-fuse: appends, replaced files, SQLite, git; on a file, a loop device, and in memory.
#
#   scripts/bench-sync.sh [--peers terrane,ext4,xfs,btrfs,zfs-off] [--media file,loop,ram] [--secs 3] [--reps 1]
#
# Kernel file systems lie on a loop device in each case. Needs root, 8 GiB for the image below TERRANE_BENCH_DIR (default: target/), and 2 GiB
# of memory for the medium ram.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

peers=terrane,ext4,xfs,btrfs,zfs-off media=file,loop,ram secs=3 reps=1
while [ $# -gt 0 ]; do
    case $1 in
        --peers) peers=$2; shift 2 ;;
        --media) media=$2; shift 2 ;;
        --secs) secs=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
[ "$(id -u)" = 0 ] || die "root is needed for loop devices"
can_mount || { loud "SKIPPED: /dev/fuse cannot be opened here"; exit 0; }
"$top/scripts/setup.sh" bench
base=${TERRANE_BENCH_DIR:-${CARGO_TARGET_DIR:-$top/target}/bench}
mkdir -p "$base"
[ -n "${NO_BUILD:-}" ] || (build_terrane && cd "$top" && cargo build --quiet --release -p fsbench)
. "$top/scripts/bench-base.sh"
fsbench=$(dirname "$terrane")/fsbench
ram=$(mktemp -d /dev/shm/bench-sync.XXXXXX)
trap 'cleanup; rm -rf "$ram"' EXIT
say "load at the start: $(cut -d ' ' -f 1-3 /proc/loadavg)"

for rep in $(seq "$reps"); do
    for medium in ${media//,/ }; do
        export IMG=$image ON_LOOP=
        case $medium in
            loop) export ON_LOOP=1 ;;
            ram) export IMG=$ram/image; [ -f "$IMG" ] || head -c 2G /dev/zero >"$IMG" ;;
        esac
        for peer in ${peers//,/ }; do
            case $peer in zfs-*) command -v zfs-fuse >/dev/null || { loud "SKIPPED: no zfs-fuse"; continue; } ;; esac
            export PEER=$peer
            printf '%s, %s, repetition %d\n' "$medium" "$peer" "$rep" >&2
            TERRANE=$terrane "$peer_script" run python3 "$top/scripts/sync.py" "$peer" "$medium" "$MNT" "$fsbench" "$secs" | tee -a "$work/rows"
        done
    done
done
python3 "$top/scripts/sync.py" table "$work/rows"
say "load at the end: $(cut -d ' ' -f 1-3 /proc/loadavg)"
