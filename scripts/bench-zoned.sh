#!/usr/bin/env bash
# Terrane beside the other zoned file systems on host-managed drives that are nearly full: `fsbench gc`, then a table.
#
#   scripts/bench-zoned.sh [--drives 4096:64:16,4096:16:16] [--peers terrane,xfs,f2fs,btrfs,terrane-file] [--percent 95] [--secs 30]
#                          [--reps 1] [--json FILE] [--writers N] [--live-mb N]
#
# A drive is SIZE_MB:ZONE_MB[:MAX_OPEN[:CAPACITY_MB[:CONVENTIONAL]]]. Each run has a machine of its own, which $ZONED_RUNNER makes
# (called as `$ZONED_RUNNER --mem SIZE --zoned NAME:DRIVE -- COMMAND`). It gets one of this machine's processors, as it has one itself:
# spread over two, its kernel and its processes wake each other at ten times the price of a system call, and that is what is measured.
# Peers follow each other within a repetition. Device bytes are the kernel's count for the zoned drive alone. xfs has a conventional
# device of 1 GiB beside it for its metadata, f2fs one of 256 MiB, in memory as the drive is; terrane-file is a pool of the same shape
# in a file in memory, and its bytes are its own count.
#
# With --writers files are 94 % of a zone, and N of them are written at once. --live-mb is what all peers fill at most, because they offer
# different parts of a drive.
#
# MKFS_XFS names a mkfs.xfs that knows zones (6.15 or later); MOUNT_OPTIONS are given to `terrane mount -o`, POOL_OPTIONS to
# `terrane pool create`; METRICS is a directory that keeps what `terrane metrics` says after each run.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
. "$(dirname "$self")/pool.sh"
fsbench=$(dirname "$terrane")/fsbench
drive=/dev/z0 mnt=/run/bench

# In the machine of the run from here on. ---------------------------------------------------------------------------------------

# A conventional device in memory.
conventional() { # MiB
    local made=/sys/kernel/config/nullb/conventional
    mkdir "$made"
    echo 1 >"$made/memory_backed"; echo 4096 >"$made/blocksize"; echo "$1" >"$made/size"; echo 1 >"$made/power"
    for _ in $(seq 50); do [ -b /dev/conventional ] && return; sleep 0.1; done
    die "the conventional device did not appear"
}

make_and_mount() { # peer, drive
    local size zone
    IFS=: read -r size zone _ <<<"$2"
    case $1 in
        # shellcheck disable=SC2086
        terrane) "$terrane" pool create bench "$drive" ${POOL_OPTIONS:-} >/dev/null ;;
        # shellcheck disable=SC2086
        terrane-file) "$terrane" pool create bench "/dev/shm/pool.img" --size "${size}M" --zone-size "${zone}M" ${POOL_OPTIONS:-} >/dev/null ;;
        xfs) conventional 1024; "${MKFS_XFS:-mkfs.xfs}" -q -f -r "rtdev=$drive" /dev/conventional; mount -o "rtdev=$drive" /dev/conventional "$mnt" ;;
        f2fs) conventional 256; mkfs.f2fs -q -f -m -c "$drive" /dev/conventional >/dev/null; mount -t f2fs /dev/conventional "$mnt" ;;
        btrfs) mkfs.btrfs -q -f "$drive" >/dev/null; mount -t btrfs "$drive" "$mnt" ;;
        *) die "peer $1 is not known" ;;
    esac
    case $1 in terrane*) "$terrane" mount bench "$mnt" ${MOUNT_OPTIONS:+-o "$MOUNT_OPTIONS"} ;; esac
}

written() { # peer
    case $1 in
        terrane-file) "$terrane" metrics bench | awk '/^terrane_device_written_bytes_total[{ ]/ { sum += $NF } END { printf "%.0f\n", sum }' ;;
        *) awk '{ printf "%.0f\n", $7 * 512 }' "/sys/block/${drive#/dev/}/stat" ;;
    esac
}

measure() { # peer, drive, words for fsbench...
    local peer=$1 shape=$2 written
    shift 2
    export TERRANE_STATE_DIR=/run/state
    mkdir -p "$TERRANE_STATE_DIR" "$mnt"
    make_and_mount "$peer" "$shape"
    written=$(printf '%q ' "$self" --written "$peer")
    "$fsbench" --dir "$mnt" --keep --json --tag peer="$peer" "$@" --written-cmd "$written"
    case $peer in terrane*) ;; *) return 0 ;; esac
    [ -z "${METRICS:-}" ] || "$terrane" metrics bench >"$METRICS/$peer-$shape"
    "$terrane" umount "$mnt"
    "$terrane" check bench >&2
}

case ${1:-} in
    --written) written "$2"; exit ;;
    --measure) shift; measure "$@"; exit ;;
esac

# On this machine. --------------------------------------------------------------------------------------------------------------

drives=4096:64:16,4096:16:16 peers=terrane,xfs,f2fs,btrfs percent=95 secs=30 reps=1 json= writers= live_mb=0
while [ $# -gt 0 ]; do
    case $1 in
        --drives) drives=$2; shift 2 ;;
        --peers) peers=$2; shift 2 ;;
        --percent) percent=$2; shift 2 ;;
        --secs) secs=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        --json) json=$2; shift 2 ;;
        --writers) writers=$2; shift 2 ;;
        --live-mb) live_mb=$2; shift 2 ;;
        *) die "unknown option $1" ;;
    esac
done
[ -n "${ZONED_RUNNER:-}" ] || { loud "SKIPPED: ZONED_RUNNER is not set, and nothing else makes zoned drives here"; exit 0; }
[ -n "${NO_BUILD:-}" ] || (cd "$top" && cargo build --quiet --release -p terrane-cli -p fsbench)
[ -z "${METRICS:-}" ] || mkdir -p "$METRICS"

# The last one that this process may use.
processor=$(taskset -cp $$ | sed 's/.*[ ,-]//')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/results"

can_measure() { # peer: its mkfs is here and knows zones
    case $1 in
        xfs) "${MKFS_XFS:-mkfs.xfs}" -V 2>/dev/null | awk '{ split($NF, v, "."); exit !(v[1] > 6 || (v[1] == 6 && v[2] >= 15)) }' ;;
        f2fs) command -v mkfs.f2fs >/dev/null ;;
        btrfs) command -v mkfs.btrfs >/dev/null ;;
    esac
}

run() { # peer, drive, repetition
    local size zone open capacity raw mem reason file files=()
    IFS=: read -r size zone open capacity _ <<<"$2"
    raw=$((size / zone * ${capacity:-$zone} << 20))
    file=$(((${capacity:-$zone} << 20) / 100 * 94 / 4096 * 4096))
    [ -z "$writers" ] || files=(--writers "$writers" --min-size "$file" --max-size "$file")
    [ "$live_mb" = 0 ] || files+=(--limit "$((live_mb * 100000000 / percent))")
    # A file takes its size a second time: memory file systems may fill half of the memory.
    mem=$((size + 3072)) drives_of_run=(--zoned "${drive#/dev/}:$2")
    [ "$1" != terrane-file ] || mem=$((size * 2 + 2048)) drives_of_run=()
    printf '%5d s  %s on %s, repetition %d\n' "$SECONDS" "$1" "$2" "$3" >&2
    # A machine of its own gets no variables of this one.
    # shellcheck disable=SC2086
    if ! taskset -c "$processor" $ZONED_RUNNER --mem "${mem}M" "${drives_of_run[@]}" --timeout $((secs * 4 + 400)) -- \
        env TERRANE="$terrane" ${MKFS_XFS:+MKFS_XFS="$MKFS_XFS"} ${METRICS:+METRICS="$METRICS"} \
        ${POOL_OPTIONS:+POOL_OPTIONS="$POOL_OPTIONS"} ${MOUNT_OPTIONS:+MOUNT_OPTIONS="$MOUNT_OPTIONS"} "$self" --measure "$1" "$2" --tag "shape=$2" --tag "raw=$raw" --tag "rep=$3" --seed "$3" gc --percent "$percent" --secs "$secs" "${files[@]}" \
        >"$work/one" 2>"$work/log"; then
        reason=$(grep -v '^$' "$work/log" | tail -n 2 | tr '\n"\\|' "   '/")
        loud "$1 on $2: $reason" >&2
        grep -q '^{' "$work/one" || printf '{"peer":"%s","shape":"%s","raw":"%s","failed":"%s"}\n' "$1" "$2" "$raw" "$reason" >"$work/one"
    fi
    sed 's/^/    /' "$work/log" >&2
    grep '^{' "$work/one" >>"$work/results"
}

for rep in $(seq "$reps"); do
    for shape in ${drives//,/ }; do
        for peer in ${peers//,/ }; do
            if can_measure "$peer"; then run "$peer" "$shape" "$rep"; else loud "$peer left out: its mkfs is missing, or knows no zones" >&2; fi
        done
    done
done
[ -z "$json" ] || cp "$work/results" "$json"
"$fsbench" zoned "$work/results"
