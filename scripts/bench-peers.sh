#!/usr/bin/env bash
# Terrane beside ext4, xfs, btrfs, zfs-fuse and the null server: every workload on every peer in turn, then tables and plots.
#
#   scripts/bench-peers.sh [--only meta-1,meta-2,find,smallfiles,seq,fsync,xattr] [--peers terrane,null,...] [--reps 3]
#                          [--quick] [--xattr-files 100000] [--xattr-distinct] [--image FILE] [--out docs/benchmarks.md]
#
# xattr is one workload for each size, xattr-1 to xattr-65536; --xattr-distinct gives every file a value of its own, at random.
# --quick is for tuning: a quarter of the work, and the page goes to standard output unless --out is given. A part (--only, --peers)
# goes there too, so that it never replaces the whole page; `fsbench compare` makes one page of several runs. Peers follow each other
# within a repetition and each repetition begins with another one, so a machine that is busy for a while does harm to all of them.
#
# Needs root (loop devices, dropping caches) and, below TERRANE_BENCH_DIR (default: target/), the image and 2 GB for the corpus.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

works=meta-1,meta-2,find,smallfiles,seq,fsync,xattr
peers= reps=3 quick= image= out= whole=1 xattr_files=100000 xattr_more=
while [ $# -gt 0 ]; do
    case $1 in
        --only) works=$2 whole=; shift 2 ;;
        --peers) peers=$2 whole=; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        --quick) quick=1 whole=; shift ;;
        --xattr-files) xattr_files=$2 whole=; shift 2 ;;
        --xattr-distinct) xattr_more=--distinct whole=; shift ;;
        --image) image=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
works=,$works,
works=${works/,xattr,/,xattr-1,xattr-32,xattr-256,xattr-1024,xattr-4096,xattr-16384,xattr-65536,}
[ -n "$out" ] || { [ -z "$whole" ] || out=$top/docs/benchmarks.md; }

# What measures the library: the path of its program is known to cargo alone.
in_process=$(cd "$top" && cargo bench --quiet --no-run -p terrane --bench xattr --message-format json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
fsbench=$(dirname "$terrane")/fsbench

programs="terrane-cli terrane-null fsbench"
. "$top/scripts/bench-base.sh"

kernel=ext4,xfs,btrfs
peers_of() {
    case $1 in
        meta-*) echo "terrane,null,$kernel,zfs-off" ;;
        find) echo "terrane,$kernel,btrfs-zstd,zfs-off" ;;
        smallfiles) echo "terrane-zstd3,terrane-lz4,null,$kernel,btrfs-zstd,zfs-off" ;;
        seq) echo "terrane-off,terrane-lz4,terrane-zstd3,terrane-off-16k,terrane-zstd3-16k,null,$kernel,btrfs-zstd,zfs-off" ;;
        fsync) echo "terrane,$kernel,zfs-off" ;;
        xattr-*) echo "terrane-sa,terrane-dir,terrane-library,terrane-library-dir,null,$kernel,zfs-off" ;;
        *) die "workload $1 is not known" ;;
    esac
}
# A peer that was asked for by name takes part in every workload that was.
chosen() {
    local peer all
    all=$(peers_of "$1")
    [ -n "$peers" ] && all=$peers
    for peer in ${all//,/ }; do
        case $peer in
            null) [ -x "$(dirname "$terrane")/terrane-null" ] || continue ;;
            zfs-*) command -v zfs-fuse >/dev/null || continue ;;
            *-library | *-library-dir) [ -n "$in_process" ] || continue ;;
            terrane*) ;;
            *) grep -qw "${peer%%-*}" /proc/filesystems || continue ;;
        esac
        echo "$peer"
    done
}
# The largest size is 6.5 GB on all files, and zfs-fuse takes most of the time of all: a quarter of the files says the same.
xattr_files() { # work, peer
    case $1/$2 in
        xattr-65536/* | */zfs-*) echo $((xattr_files / 4)) ;;
        *) echo "$xattr_files" ;;
    esac
}
part() { if [ -n "$quick" ]; then echo $(($1 / 4)); else echo "$1"; fi; }
run() { # work, peer, repetition
    local work_name=$1 peer=$2 rep=$3 args between
    between='$COLD'
    case $work_name in
        meta-*) args="meta --threads ${work_name#meta-} --files $(part 20000) --dirs 20" between='$ATTRIBUTES' ;;
        find) args="find --dirs $(part 500) --files 100" ;;
        smallfiles) args="smallfiles --input-dir $corpus/small" ;;
        seq) args="seq --input $corpus/large --size $(part $((1 << 30))) --random $(part 3000) --fsync-every 16" ;;
        fsync) args="fsync --secs $(part 4)" ;;
        xattr-*) args="xattr --bytes ${work_name#xattr-} --files $(part "$(xattr_files "$work_name" "$peer")") $xattr_more" ;;
    esac
    export PEER=$peer
    local tags="--seed $rep --tag work=$work_name --tag peer=$peer --tag rep=$rep --between-cmd \"$between\""
    local command="'$fsbench' -d '$MNT' --json --keep $tags \${SYNC:+--sync-cmd \"\$SYNC\"} $args"
    case $peer in
        *-library) command="'$in_process' --json --image '$IMG' $tags $args" ;;
        *-library-dir) command="'$in_process' --json --image '$IMG' --xattr dir $tags $args" ;;
    esac
    if ! "$peer_script" run bash -c "$command" >"$work/one" 2>"$work/log"; then
        reason=$(tail -n 3 "$work/log" | tr '\n"\\' "  '")
        loud "$work_name on $peer: $reason"
        printf '{"work":"%s","peer":"%s","rep":"%s","failed":"%s"}\n' "$work_name" "$peer" "$rep" "$reason" >"$work/one"
        "$peer_script" down >/dev/null 2>&1 || true
        unmount "$MNT"
    fi
    tail -n 1 "$work/one" >>"$work/results"
}

start=$SECONDS
for rep in $(seq "$reps"); do
    for work_name in ${works//,/ }; do
        mapfile -t turn < <(chosen "$work_name")
        [ ${#turn[@]} -gt 0 ] || continue
        for at in "${!turn[@]}"; do
            peer=${turn[$(((at + rep - 1) % ${#turn[@]}))]}
            printf '%5d s  repetition %d: %s on %s\n' $((SECONDS - start)) "$rep" "$work_name" "$peer" >&2
            run "$work_name" "$peer" "$rep"
        done
    done
done

version() { "$@" 2>&1 | head -n 1 | tr '\t' ' '; }
facts() {
    fact() { printf '%s\t%s\n' "$1" "$2"; }
    fact terrane "$(version "$terrane" --version), commit $(git -C "$top" rev-parse --short HEAD 2>/dev/null || echo unknown)"
    fact machine "$(nproc) x $(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1), $(awk '/MemTotal/ { printf "%.0f GB", $2 / 1e6 }' /proc/meminfo)"
    fact kernel "$(uname -r)"
    fact "disk below the image" "$(df --output=fstype "$image" | tail -n 1)"
    fact image "$((size >> 30)) GiB, written in full, loop devices with direct-io=on"
    fact e2fsprogs "$(version mkfs.ext4 -V)"
    fact xfsprogs "$(version mkfs.xfs -V)"
    fact btrfs-progs "$(version mkfs.btrfs -V)"
    fact zfs-fuse "$(dpkg-query -W -f '${Version}' zfs-fuse 2>/dev/null || echo none)"
    fact rustc "$(version rustc --version)"
    fact corpus "$(stat -c %s "$corpus/large") bytes of a source tree as one file; $(find "$corpus/small" -type f | wc -l) small files"
    fact load "$(cut -d ' ' -f 1-3 /proc/loadavg) at the end"
    fact seconds "$((SECONDS - start))"
    fact "files of xattr" "$(part "$xattr_files"); $(part "$((xattr_files / 4))") for xattr-65536 and for zfs-fuse${xattr_more:+; each with a value of its own}"
    fact command "\`scripts/bench-peers.sh --reps $reps\`"
    fact "mount options of Terrane" "nodiscard${TERRANE_MOUNT_OPTIONS:+,$TERRANE_MOUNT_OPTIONS}; pools made with --no-discard"
    fact "mkfs and mount options" "ext4: -E nodiscard,lazy_itable_init=0,lazy_journal_init=0; xfs: -K; btrfs: -K, -o nodiscard[,compress=zstd:3]"
}
facts >"$work/facts"
cp "$work/results" "$base/results.jsonl"
cp "$work/facts" "$base/facts"
"$fsbench" compare "$work/results" --facts "$work/facts" ${out:+--out "$out"}
[ -z "$out" ] || say "written: $out and the plots beside it; what it was made of: $base/results.jsonl and $base/facts"
