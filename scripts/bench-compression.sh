#!/usr/bin/env bash
# What each algorithm saves and costs, on every peer: a source tree as one file, written with fsync and read cold; the same from a slow
# device; then what hardly shrinks.
#
#   scripts/bench-compression.sh [--mib 256] [--reps 1] [--peers terrane-zstd3-128k,...] [--works source,slow,random,...]
#                                [--append FILE] [--first 1] [--image FILE] [--plot FILE.svg] [--steady TRIES]
#
# Works: source; slow, the same on a device that reads 200 MB/s; and writes of random bytes, jpeg, zstd, text, binary and mixed.
# The table goes to standard output, and with all peers the plot to docs/compression.svg and .png, followed by the codecs alone: how much
# smaller than OpenZFS by the same algorithm and record, and MB/s of one core. --append adds to the results of other runs and makes
# table and plot of all, so that columns can be measured one by one; --first numbers the first repetition, and what has a number that is
# there takes its place. What fails is said, and is no figure.
# --steady: on machines whose processors are at times worth fewer, a column is measured so many times at the most, until the processors
# are what they were at their best before and after it.
# NO_BUILD: $TERRANE, and fsbench beside it, are measured as they are.
# Needs root, and below TERRANE_BENCH_DIR (default: target/) an image of TERRANE_BENCH_GIB (default 4) and 2 GB for the corpus.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

mib=256 reps=1 works=source,slow,random,jpeg,zstd,text,binary,mixed peers=ext4,btrfs-zstd,zfs-gzip plot='' append='' image='' first=1 whole=1 steady=1
slow_mb=200
for record in 128k 1m; do
    for word in off lz4 gzip6 gzip9 fast1 zstd1 zstd3 zstd9 zstd19 auto; do peers+=,terrane-$word-$record; done
done
while [ $# -gt 0 ]; do
    case $1 in
        --mib) mib=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        --peers) peers=$2 whole=; shift 2 ;;
        --works) works=$2 whole=; shift 2 ;;
        --append) append=$2; shift 2 ;;
        --first) first=$2; shift 2 ;;
        --image) image=$2; shift 2 ;;
        --plot) plot=$2; shift 2 ;;
        --steady) steady=$2; shift 2 ;;
        *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
[ -z "$whole" ] || plot=${plot:-$top/docs/compression.svg}

TERRANE_BENCH_GIB=${TERRANE_BENCH_GIB:-4}
fsbench=$(dirname "$terrane")/fsbench
programs="terrane-cli fsbench"
. "$top/scripts/bench-base.sh"
results=${append:-$base/compression.jsonl}
[ -n "$append" ] || : >"$results"

# What hardly shrinks: 64 MiB of each kind, repeated. What repeats lies too far apart for any record.
kind_bytes=$((64 << 20))
kinds=$corpus/kinds
make_kind() {
    case $1 in
        random) cat /dev/urandom ;;
        # The source as shades of grey, a picture of 32 megapixels each.
        jpeg) for at in $(seq 0 31); do
                { printf 'P5 4096 8192 255\n' && dd if="$corpus/large" bs=32M skip="$at" count=1 status=none; } | cjpeg -quality 80
            done ;;
        zstd) zstd -q -3 -c "$corpus/large" ;;
        text) cat "$corpus/large" ;;
        binary) find /usr/lib /lib -name '*.so*' -type f -size +256k -print0 | sort -z | xargs -0 cat ;;
        mixed) for _ in $(seq 512); do head -c 64K /dev/urandom && head -c 64K <&3; done 3<"$corpus/large" ;;
        *) die "work $1 is not known" ;;
    esac 2>/dev/null | head -c "$kind_bytes" || true
}
input_of() { # work
    case $1 in
        source | slow) echo "$corpus/large" ;;
        *)
            if [ ! -e "$kinds/$1" ]; then
                mkdir -p "$kinds"
                make_kind "$1" >"$kinds/making"
                [ "$(stat -c %s "$kinds/making")" = "$kind_bytes" ] || die "there is too little to make a corpus of $1 from"
                mv "$kinds/making" "$kinds/$1"
            fi
            echo "$kinds/$1"
            ;;
    esac
}
can_run() { # work, peer
    case $1/$2 in
        */terrane*) ;;
        */zfs-*) [ "$1" = source ] && command -v zfs-fuse >/dev/null ;;
        source/* | slow/*) grep -qw "${2%%-*}" /proc/filesystems ;;
        *) false ;;
    esac
}
run() { # work, peer, repetition
    local input reason
    input=$(input_of "$1")
    export PEER=$2 READ_MB_PER_S=
    [ "$1" != slow ] || READ_MB_PER_S=$slow_mb
    local command="'$fsbench' -d '$MNT' --json --seed $3 --tag work=$1 --tag peer=$2 --tag rep=$3 --between-cmd \"\$COLD\" \
        \${SYNC:+--sync-cmd \"\$SYNC\"} seq --input '$input' --size $((mib << 20)) --random 64"
    if ! "$peer_script" run bash -c "$command" >"$work/one" 2>"$work/log"; then
        reason=$(tail -n 3 "$work/log" | tr '\n"\\' "  '")
        loud "$1 on $2: $reason"
        printf '{"work":"%s","peer":"%s","rep":"%s","failed":"%s"}\n' "$1" "$2" "$3" "$reason" >"$work/one"
        "$peer_script" down >/dev/null 2>&1 || true
        unmount "$MNT"
    fi
    tail -n 1 "$work/one" >>"$results"
}

# Milliseconds for the same work on every processor at once.
look() {
    local began
    began=$(date +%s%N)
    for _ in $(seq "$(nproc)"); do zstd -q -6 --single-thread -c "$work/look" >/dev/null & done
    wait
    echo $((($(date +%s%N) - began) / 1000000))
}
best=
is_steady() { # two looks
    local at
    for at in "$@"; do [ -n "$best" ] && [ "$at" -ge "$best" ] || best=$at; done
    for at in "$@"; do [ $((at * 10)) -le $((best * 14)) ] || return 1; done
}
run_steady() { # as run
    local before
    for _ in $(seq "$steady"); do
        before=$(look)
        run "$@"
        is_steady "$before" "$(look)" && return
    done
    loud "$1 on $2: the processors were not steady in any of $steady runs"
}
[ "$steady" = 1 ] || head -c 16M "$corpus/large" >"$work/look"

throttle=/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device
for name in ${works//,/ }; do
    if [ "$name" = slow ] && [ ! -w "$throttle" ]; then
        loud "SKIPPED: no slow device without the blkio controller of cgroup 1 ($throttle)"
        continue
    fi
    input_of "$name" >/dev/null
    mapfile -t turn < <(for peer in ${peers//,/ }; do if can_run "$name" "$peer"; then echo "$peer"; fi; done)
    for rep in $(seq "$first" "$((first + reps - 1))"); do
        for at in "${!turn[@]}"; do
            peer=${turn[$(((at + rep - 1) % ${#turn[@]}))]}
            printf '%5d s  repetition %d: %s on %s\n' "$SECONDS" "$rep" "$name" "$peer" >&2
            if [ "$steady" = 1 ]; then run "$name" "$peer" "$rep"; else run_steady "$name" "$peer" "$rep"; fi
        done
    done
done
for peer in ${peers//,/ }; do can_run source "$peer" || loud "SKIPPED: $peer is not to be had here"; done

"$fsbench" compression "$results" ${plot:+--plot "$plot"}
if [ -n "$plot" ]; then rsvg-convert --zoom 2 "$plot" -o "${plot%.svg}.png"; fi
[ -z "$whole" ] || (cd "$top" && cargo bench --quiet -p terrane-codec --bench ratio -- "$corpus/large" &&
    cargo bench --quiet -p terrane-codec --bench codec -- "$kinds/jpeg")
say "what it was made of: $results"
