#!/usr/bin/env bash
# RocksDB on Terrane, ext4, xfs and btrfs: fill, overwrite and read while writing on a file system that is 80 % full.
#
#   scripts/bench-rocksdb.sh [--peers terrane-off,ext4,xfs,btrfs] [--size 8G] [--zone-size 32M] [--percent 80] [--writes 500000]
#                            [--reads 125000] [--image FILE] [--out FILE]
#
# Each peer gets the same image, written in full; `db_bench` (Debian: rocksdb-tools) makes tables as large as a zone less a part of 16, not
# compressed, and as many keys as make its database --percent of what is offered. Then it overwrites --writes keys, and each of two threads reads
# --reads (a quarter of --writes) while it writes up to 4 MB/s: the same work for every peer, since a database takes more space the faster it is
# overwritten. File-system write amplification is what the device was given for each byte that RocksDB wrote (its own counts of log,
# flushes and compactions); Terrane counts its device itself, the kernel that of the others. Needs root.
#
# MOUNT_OPTIONS are given to `terrane mount -o`.
set -euo pipefail
self=$(realpath "${BASH_SOURCE[0]}")
. "$(dirname "$self")/pool.sh"

# On one peer, from here on: bench-peer.sh has mounted it at $MNT.

written() {
    case $PEER in
        terrane*) "$terrane" metrics bench | awk '/^terrane_device_written_bytes_total[{ ]/ { sum += $NF } END { printf "%.0f\n", sum }' ;;
        *) awk '{ printf "%.0f\n", $7 * 512 }' "/sys/block/$(basename "$(losetup -j "$IMG" -n -O NAME | tr -d ' ' | head -n 1)")/stat" ;;
    esac
}

# What a pool's device was given, by what for: words of NAME=BYTES.
spent() {
    case $PEER in
        terrane*) "$terrane" metrics bench | awk -F '["} ]+' '/^terrane_life_device_bytes_total/ { printf "%s=%.0f ", $(NF - 1), $NF }' ;;
    esac
}

# How full it is, five times a second, until it is killed: what is used and what is available, in bytes.
watch_use() { while sleep 0.2; do df --output=used,avail -B1 "$MNT" | tail -n 1; done; }

phase() { # name, words for db_bench...
    local name=$1 before after spent watcher status=0
    shift
    watch_use >"$WORK/use" & watcher=$!
    before=$(written) spent=$(spent)
    db_bench --benchmarks="$name" --db="$MNT/db" --num="$KEYS" --key_size=16 --value_size=1000 --compression_type=none --compression_ratio=1 --seed=1 \
        --target_file_size_base="$FILE_BYTES" --write_buffer_size="$FILE_BYTES" --max_bytes_for_level_base=$((FILE_BYTES * 4)) \
        --max_background_jobs=2 --statistics --use_direct_io_for_flush_and_compaction "$@" >"$WORK/$name.log" 2>&1 || status=$?
    kill "$watcher"
    wait "$watcher" || true
    if [ "$status" != 0 ]; then
        say "$name ended by $status; when it was last looked at, $(tail -n 1 "$WORK/use" | awk '{ printf "%.1f MB were used and %.1f available", $1 / 1e6, $2 / 1e6 }')" >&2
        grep -ahoE '(IO error|No space|Corruption|Assertion).{0,160}' "$WORK/$name.log" "$MNT/db/LOG" | sort | uniq -c | sort -rn | sed -n 1,5p >&2 || true
        return 1
    fi
    sync "$MNT/db"
    [ -z "${SYNC:-}" ] || sh -c "$SYNC"
    after=$(written)
    awk -v name="$name" -v peer="$PEER" -v device=$((after - before)) -v before="$spent" -v after="$(spent)" '
        FILENAME ~ /\/use$/ { use = $1 * 100 / ($1 + $2); sum += use; looks++; if (use > peak) peak = use; next }
        $1 == name && /ops\/sec/ { for (i = 2; i < NF; i++) if ($(i + 1) ~ /^ops\/sec/) rate = $i }
        # Each is said once more when the database is closed: the last holds.
        /^rocksdb\.(wal\.bytes|flush\.write\.bytes|compact\.write\.bytes) COUNT/ { wrote[$1] = $NF }
        END {
            for (what in wrote) bytes += wrote[what]
            printf "%s\t%s\t%.0f\t%.0f\t%.0f\t%.3f\t%.0f, %.0f\t", peer, name, rate, bytes / 1e6, device / 1e6, device / (bytes ? bytes : 1), sum / (looks ? looks : 1), peak
            count = split(before, words)
            for (at = 1; at <= count; at++) { split(words[at], pair, "="); had[pair[1]] = pair[2] }
            count = split(after, words)
            for (at = 1; at <= count; at++) { split(words[at], pair, "="); printf "%s %.0f%s", pair[1], (pair[2] - had[pair[1]]) / 1e6, at < count ? ", " : "" }
            print ""
        }' "$WORK/use" "$WORK/$name.log"
}

on_peer() {
    local offered
    offered=$(df --output=avail -B1 "$MNT" | tail -n 1)
    # What a key takes in the tables, and what is there twice while tables are merged.
    export KEYS=$((offered * PERCENT / 100 / 1030 * 95 / 100))
    # Straight after each other, as a database lives: no rest for anybody to tidy up.
    phase filluniquerandom
    phase overwrite --use_existing_db --writes="$WRITES"
    phase readwhilewriting --use_existing_db --reads="$READS" --threads=2 --benchmark_write_rate_limit=4000000
}

[ "${1:-}" != --on-peer ] || { on_peer; exit; }

peers=terrane-off,ext4,xfs,btrfs size=8G zone=32M percent=80 writes=500000 reads= image= out=
while [ $# -gt 0 ]; do
    case $1 in
        --peers) peers=$2; shift 2 ;;
        --size) size=$2; shift 2 ;;
        --zone-size) zone=$2; shift 2 ;;
        --percent) percent=$2; shift 2 ;;
        --writes) writes=$2; shift 2 ;;
        --reads) reads=$2; shift 2 ;;
        --image) image=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        *) die "unknown option $1" ;;
    esac
done
command -v db_bench >/dev/null || { loud "SKIPPED: db_bench is not installed (Debian: rocksdb-tools)"; exit 0; }
can_mount && [ "$(id -u)" = 0 ] || { loud "SKIPPED: needs root and /dev/fuse"; exit 0; }
[ -n "${NO_BUILD:-}" ] || build_terrane

work=$(work_dir)
export IMG=${image:-$work/image} MNT=$work/mnt WORK=$work PERCENT=$percent WRITES=$writes READS=${reads:-$((writes / 4))}
export FILE_BYTES=$(($(numfmt --from=iec "$zone") / 16 * 15)) TERRANE_POOL_OPTIONS="--zone-size $zone" TERRANE_MOUNT_OPTIONS=${MOUNT_OPTIONS:-}
trap 'unmount "$MNT"; rm -rf --one-file-system "$work"' EXIT
mkdir -p "$MNT"
[ -e "$IMG" ] || head -c "$(numfmt --from=iec "$size")" /dev/zero >"$IMG"
for peer in ${peers//,/ }; do
    printf '%5d s  %s\n' "$SECONDS" "$peer" >&2
    PEER=$peer "$(dirname "$self")/bench-peer.sh" run "$self" --on-peer >>"$work/results" || loud "$peer failed" >&2
done
[ -z "$out" ] || cp "$work/results" "$out"
awk -F '\t' 'BEGIN {
    print "| file system | phase | operations/s | RocksDB wrote, MB | device was given, MB | write amplification | % in use, mean and peak | of it, MB |"
    print "|---|---|---|---|---|---|---|---|"
} { printf "| %s | %s | %s | %s | %s | %s | %s | %s |\n", $1, $2, $3, $4, $5, $6, $7, $8 }' "$work/results"
