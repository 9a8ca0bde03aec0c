#!/usr/bin/env bash
# What single operations wait for while two writers stream: `fsbench latency` on a pool of its own with default options.
#
#   scripts/bench-latency.sh [--seconds N] [--writers N] [--size SIZE] [-- OPTIONS OF fsbench latency]
#
# The pool lies in TERRANE_TEST_DIR, or where pool.sh finds space; MOUNT_OPTIONS are given to `terrane mount -o`. Reads are cold:
# the pool is mounted anew before them. After the table it prints the longest txg, which nothing should wait longer than,
# and what the daemon's own counters say of waiting.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

seconds=20 writers=2 size=12G
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=$2; shift 2 ;;
        --writers) writers=$2; shift 2 ;;
        --size) size=$2; shift 2 ;;
        --) shift; break ;;
        *) die "unknown option $1" ;;
    esac
done
can_mount || { loud "skipped: nothing can be mounted here"; exit 0; }

[ -n "${NO_BUILD:-}" ] || (cd "$top" && cargo build --quiet --release -p terrane-cli -p fsbench)
work=$(work_dir)
mnt=$work/mnt
export TERRANE_STATE_DIR=$work/state
trap 'unmount "$mnt"; rm -rf "$work"' EXIT
mkdir -p "$mnt"

"$terrane" pool create latency "$work/pool.img" --size "$size" >/dev/null
mount=("$terrane" mount ${MOUNT_OPTIONS:+-o "$MOUNT_OPTIONS"} latency "$mnt")
"${mount[@]}"
fsbench=$(dirname "$terrane")/fsbench
remount=$(printf '%q ' "$terrane" umount "$mnt")"&& "$(printf '%q ' "${mount[@]}")
"$fsbench" --dir "$mnt" --json --keep --between-cmd "$remount" latency --writers "$writers" --secs "$seconds" "$@" >"$work/json"
[ -z "${JSON:-}" ] || cp "$work/json" "$JSON"
"$terrane" metrics latency >"$work/metrics"
grep -E '^terrane_(txg_(sync|quiesce|join_wait|wait)|fuse_parked)[a-z_]*[{]' "$work/metrics" | grep -v _bucket
