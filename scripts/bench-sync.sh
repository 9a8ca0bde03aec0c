#!/usr/bin/env bash
# What fsync costs programs beside ext4, xfs, btrfs and zfs-fuse, on a file, a loop device, and in memory.
#
#   scripts/bench-sync.sh [--peers terrane,ext4,xfs,btrfs,zfs-off] [--media file,loop,ram] [--secs 2] [--reps 1] [--only ROW,...]
#
# Rows:
#   bytes     what the device was given for each append of 4 KiB with fsync, with all that is written later: --secs
#   append    of 4 KiB, then fsync, in 1, 4 and 16 threads: --secs each
#   replace   create, write, fsync, rename, in as many threads
#   beside    p99 of append and fsync beside two streaming writers: twice --secs
#   sqlite    10,000 transactions, rollback and WAL, or as many as in four times --secs
#   git       200 commits with core.fsync=all, or as many as in ten times --secs
#   pgbench   PostgreSQL with fsync, 4 clients: twice --secs
#   rocksdb   db_bench with sync=1: --secs
#   dpkg      `dpkg -i` of a package of 1,000 files into a root of its own
#
# Kernel file systems lie on a loop device in each case, zfs-fuse on the file. The device's bytes are counted by the loop device, by
# Terrane, or for zfs-fuse by the kernel for its process. Needs root, 8 GiB for the image below TERRANE_BENCH_DIR (default: target/),
# and 2 GiB of memory for the medium ram.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

peers=terrane,ext4,xfs,btrfs,zfs-off media=file,loop,ram secs=2 reps=1
known=bytes,append,replace,beside,sqlite,git,pgbench,rocksdb,dpkg only=
while [ $# -gt 0 ]; do
    case $1 in
        --peers) peers=$2; shift 2 ;;
        --media) media=$2; shift 2 ;;
        --secs) secs=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        --only) only=$2; shift 2 ;;
        *) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
only=${only:-$known}
for row in ${only//,/ }; do [[ ,$known, == *,$row,* ]] || die "--only: no row is called $row; there are $known"; done
programs="terrane-cli terrane-preload fsbench"
. "$top/scripts/bench-base.sh"
fsbench=$(dirname "$terrane")/fsbench
ram=$(mktemp -d /dev/shm/bench-sync.XXXXXX)
# PostgreSQL runs as a user of its own, and must reach the mount.
outside=$(mktemp -d)
chmod 755 "$outside"
export MNT=$outside/mnt TERRANE=$terrane PACKAGE=$work/bench-sync.deb TERRANE_MOUNT_OPTIONS=allow_other
mkdir "$MNT"
trap 'cleanup; rm -rf "$ram"; is_mounted "$MNT" || rm -rf "$outside"' EXIT
[[ ,$only, != *,dpkg,* ]] || ! command -v dpkg-deb >/dev/null || python3 "$top/scripts/sync.py" package "$PACKAGE"
say "load at the start: $(cut -d ' ' -f 1-3 /proc/loadavg)"

status=0
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
            printf '%5d s  %s, %s, repetition %d\n' "$SECONDS" "$medium" "$peer" "$rep" >&2
            measure=(python3 "$top/scripts/sync.py" measure "$peer" "$medium" "$MNT" "$fsbench" "$secs" "$only")
            "$peer_script" run "${measure[@]}" | tee -a "$work/rows" || status=1
        done
    done
done
python3 "$top/scripts/sync.py" table "$work/rows"
say "load at the end: $(cut -d ' ' -f 1-3 /proc/loadavg); --secs $secs, $reps repetitions"
exit "$status"
