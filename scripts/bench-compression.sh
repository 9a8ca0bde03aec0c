#!/usr/bin/env bash
# What each algorithm saves and costs: a source tree as one file, written with fsync and read cold, on every peer; then random bytes.
#
#   scripts/bench-compression.sh [--mib 256] [--reps 1] [--peers terrane-zstd3-128k,...] [--works source,noise] [--plot FILE.svg]
#
# The table goes to standard output, the plot to docs/compression.svg, and to compression.png where ImageMagick is. Then the codecs alone:
# how much smaller than OpenZFS by the same algorithm and record, and MB/s of one core on what people store.
# Needs root, and below TERRANE_BENCH_DIR (default: target/) an image of TERRANE_BENCH_GIB (default 4) and 2 GB for the corpus.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

mib=256 reps=1 works=source,noise plot=$top/docs/compression.svg peers=ext4,btrfs-zstd,zfs-gzip
for record in 128k 1m; do
    for word in off lz4 gzip6 gzip9 zstd1 zstd3 zstd9 zstd19 fast1 auto; do peers+=,terrane-$word-$record; done
done
while [ $# -gt 0 ]; do
    case $1 in
        --mib) mib=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        --peers) peers=$2; shift 2 ;;
        --works) works=$2; shift 2 ;;
        --plot) plot=$2; shift 2 ;;
        *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done

[ "$(id -u)" = 0 ] || die "root is needed for loop devices and for dropping caches"
can_mount || { loud "SKIPPED: /dev/fuse cannot be opened here"; exit 0; }
"$top/scripts/setup.sh" bench
base=${TERRANE_BENCH_DIR:-${CARGO_TARGET_DIR:-$top/target}/bench}
image=
mkdir -p "$base"
TERRANE_BENCH_GIB=${TERRANE_BENCH_GIB:-4}
(cd "$top" && cargo build --quiet --release -p terrane-cli -p fsbench)
fsbench=$(dirname "$terrane")/fsbench
. "$top/scripts/bench-base.sh"

head -c "$((mib << 20))" /dev/urandom >"$work/noise"
can_run() { # peer
    case $1 in
        terrane*) ;;
        zfs-*) command -v zfs-fuse >/dev/null ;;
        *) grep -qw "${1%%-*}" /proc/filesystems ;;
    esac
}
run() { # work, peer, repetition
    local input=$corpus/large reason
    [ "$1" = source ] || input=$work/noise
    export PEER=$2
    local command="'$fsbench' -d '$MNT' --json --seed $3 --tag work=$1 --tag peer=$2 --tag rep=$3 --between-cmd \"\$COLD\" \
        \${SYNC:+--sync-cmd \"\$SYNC\"} seq --input '$input' --size $((mib << 20)) --random 64"
    if ! "$peer_script" run bash -c "$command" >"$work/one" 2>"$work/log"; then
        reason=$(tail -n 3 "$work/log" | tr '\n"\\' "  '")
        loud "$1 on $2: $reason"
        printf '{"work":"%s","peer":"%s","rep":"%s","failed":"%s"}\n' "$1" "$2" "$3" "$reason" >"$work/one"
        "$peer_script" down >/dev/null 2>&1 || true
        unmount "$MNT"
    fi
    tail -n 1 "$work/one" >>"$base/compression.jsonl"
}

: >"$base/compression.jsonl"
mapfile -t turn < <(for peer in ${peers//,/ }; do if can_run "$peer"; then echo "$peer"; else echo "no $peer here" >&2; fi; done)
for rep in $(seq "$reps"); do
    for name in ${works//,/ }; do
        for at in "${!turn[@]}"; do
            peer=${turn[$(((at + rep - 1) % ${#turn[@]}))]}
            printf '%5d s  repetition %d: %s on %s\n' "$SECONDS" "$rep" "$name" "$peer" >&2
            run "$name" "$peer" "$rep"
        done
    done
done
"$fsbench" compression "$base/compression.jsonl" --plot "$plot"
if command -v convert >/dev/null; then
    convert "$plot" "${plot%.svg}.png" || loud "ImageMagick cannot draw $plot"
else
    loud "no ImageMagick here: $plot is not made a PNG"
fi
(cd "$top" && cargo bench --quiet -p terrane-codec --bench ratio -- "$corpus/large" && cargo bench --quiet -p terrane-codec --bench codec)
