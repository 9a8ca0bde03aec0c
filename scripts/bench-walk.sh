#!/usr/bin/env bash
# A cold walk over many names: `find` and a bare walk by getdents, on a pool and on the null server with the same tree, in turn.
#
#   scripts/bench-walk.sh [--dirs N] [--names N] [--rounds N] [--memory SIZE] [--image FILE]
#
# 10,000 directories of 1,800 empty files unless told otherwise, which takes 1 GiB for the pool and 7 GiB of memory for the null
# server. With --image the pool is kept in FILE, and taken from there the next time. Before each walk the pool is mounted anew with
# that much memory (128M), and the kernel's caches are dropped on both sides. The null server's listings bring names only, as the
# pool's do for a program that looks no file up. MOUNT_OPTIONS are given to `terrane mount -o`.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

dirs=10000 names=1800 rounds=3 memory=128M image=
while [ $# -gt 0 ]; do
    case $1 in
        --dirs) dirs=$2; shift 2 ;;
        --names) names=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --memory) memory=$2; shift 2 ;;
        --image) image=$(realpath "$2"); shift 2 ;;
        *) die "unknown option $1" ;;
    esac
done
can_mount || { loud "skipped: nothing can be mounted here"; exit 0; }

[ -n "${NO_BUILD:-}" ] || (cd "$top" && cargo build --quiet --release -p terrane-cli -p terrane-null -p terrane-walk)
bin=$(dirname "$terrane")
work=$(TERRANE_TEST_DIR=${TERRANE_TEST_DIR:-${TMPDIR:-/tmp}} work_dir)
pool=$work/pool null=$work/null
export TERRANE_STATE_DIR=$work/state
trap 'unmount "$pool"; unmount "$null"; rm -rf "$work"' EXIT
mkdir -p "$pool" "$null"

: "${image:=$work/walk.img}"
[ -e "$image" ] || "$bin/terrane-walk" make "$image" --dirs "$dirs" --names "$names"
"$terrane" pool import -d "$(dirname "$image")" walk >/dev/null
"$bin/terrane-null" "$null" --tree "${dirs}x$names" --names-only

seconds() { local start=$EPOCHREALTIME; "$@" >/dev/null; awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.2f", to - from }'; }
cold() {
    if [ "$1" = "$pool" ]; then
        unmount "$pool"
        echo 3 >/proc/sys/vm/drop_caches
        "$terrane" mount --memory "$memory" ${MOUNT_OPTIONS:+-o "$MOUNT_OPTIONS"} walk "$pool"
    else
        echo 3 >/proc/sys/vm/drop_caches
    fi
}
row() { printf '%-28s %10s %10s %8s\n' "$@"; }

row "$((dirs * (names + 1))) names" pool,s null,s ratio
for _ in $(seq "$rounds"); do
    for walk in "find DIR -name zzz" "$bin/terrane-walk getdents DIR"; do
        for dir in "$pool" "$null"; do
            cold "$dir"
            # shellcheck disable=SC2086
            took=$(seconds ${walk//DIR/$dir})
            [ "$dir" = "$pool" ] && ours=$took || row "$(basename "${walk%% DIR*}")" "$ours" "$took" \
                "$(awk -v ours="$ours" -v null="$took" 'BEGIN { printf "%.2f", ours / null }')"
        done
    done
done
