#!/usr/bin/env bash
# What snapshots and copies cost, beside btrfs, zfs-fuse and ext4 (copies alone), each on a fresh file system on the same image.
#
#   scripts/bench-snapshots.sh [--peers terrane,btrfs,zfs-off,ext4] [--files 100000] [--snapshots 1000] [--copy-mib 2048] [--reps 1]
#
# Needs root (loop devices), and 8 GiB for the image below TERRANE_BENCH_DIR (default: target/).
set -euo pipefail
. "$(dirname "$0")/pool.sh"

peers=terrane,btrfs,zfs-off,ext4 files=100000 snapshots=1000 copied=2048 reps=1
while [ $# -gt 0 ]; do
    case $1 in
        --peers) peers=$2; shift 2 ;;
        --files) files=$2; shift 2 ;;
        --snapshots) snapshots=$2; shift 2 ;;
        --copy-mib) copied=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
programs="terrane-cli terrane-preload"
. "$top/scripts/bench-base.sh"

for rep in $(seq "$reps"); do
    for peer in ${peers//,/ }; do
        case $peer in zfs-*) command -v zfs-fuse >/dev/null || { loud "SKIPPED: no zfs-fuse"; continue; } ;; esac
        export PEER=$peer
        printf '%s, repetition %d\n' "$peer" "$rep" >&2
        TERRANE=$terrane "$peer_script" run python3 "$top/scripts/snapshots.py" "$peer" "$MNT" "$files" "$snapshots" "$copied" | tee -a "$work/rows"
    done
done
python3 "$top/scripts/snapshots.py" table "$work/rows"
say "load at the end: $(cut -d ' ' -f 1-3 /proc/loadavg)"
