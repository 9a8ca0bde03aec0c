#!/usr/bin/env bash
# A source tree copied in, and compared cold: terrane with lz4 and zstd-3, and ext4 on a loop device, in one run on one disk.
#
# Needs root (loop device, dropping caches) and about 10 GB below TERRANE_BENCH_DIR.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

[ "$(id -u)" = 0 ] || die "root is needed for the loop device and for dropping caches"
can_mount || { loud "SKIPPED: /dev/fuse cannot be opened here"; exit 0; }
"$top/scripts/setup.sh" demo
build_terrane
base=${TERRANE_BENCH_DIR:-$top/target}
mkdir -p "$base"
work=$(mktemp -d "$base/bench.XXXXXX")
mnt=$work/mnt
export TERRANE_STATE_DIR=$work/state
mkdir -p "$mnt" "$TERRANE_STATE_DIR"
cleanup() { unmount "$mnt"; is_mounted "$mnt" || rm -rf --one-file-system "$work"; }
trap cleanup EXIT
trap 'exit 130' INT TERM

tree=${TERRANE_TREE:-}
if [ -z "$tree" ]; then
    archive=$(ls /usr/src/linux-source-6.1.tar.* 2>/dev/null | head -n 1 || true)
    if [ -n "$archive" ]; then
        say "unpacking $archive"
        mkdir "$work/tree" && tar -xf "$archive" -C "$work/tree"
        tree=$work/tree
    else
        tree=/usr/share
    fi
fi
content=$(du -s --apparent-size --block-size=1 "$tree" | cut -f1)
rounds=${TERRANE_BENCH_ROUNDS:-1}

drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }
seconds() { local from to; from=$(date +%s.%N); "$@"; to=$(date +%s.%N); awk -v a="$from" -v b="$to" 'BEGIN { printf "%.1f", b - a }'; }

make_terrane() { rm -f "$work/pool.img" "$TERRANE_STATE_DIR/pools"; "$terrane" pool create bench "$work/pool.img" --size 8G -o "compression=$1" >/dev/null; }
open_terrane() { "$terrane" mount bench "$mnt"; }
finish_terrane() { "$terrane" sync bench; }
size_terrane() { stored_bytes "$work/pool.img"; }
make_ext4() { rm -f "$work/ext4.img"; truncate -s 8G "$work/ext4.img"; mkfs.ext4 -q -F "$work/ext4.img"; }
open_ext4() { mount -o loop "$work/ext4.img" "$mnt"; }
finish_ext4() { sync -f "$mnt"; }
size_ext4() { stored_bytes "$work/ext4.img"; }

copy_in() { cp -a "$tree" "$mnt/tree"; "finish_$1"; }
compare() { diff -r --no-dereference "$tree" "$mnt/tree" >&2; }
measure() { # label, kind, words
    local label=$1 kind=$2 in cold stored
    shift 2
    "make_$kind" "$@"
    "open_$kind"
    # The source is warm for everybody.
    tar -cf /dev/null "$tree" 2>/dev/null || true
    in=$(seconds copy_in "$kind")
    unmount "$mnt"
    drop_caches
    tar -cf - "$tree" 2>/dev/null | cat >/dev/null
    "open_$kind"
    cold=$(seconds compare)
    stored=$("size_$kind")
    unmount "$mnt"
    printf '%-16s %10s %14s %14s %10s\n' "$label" "$in" "$cold" "$(mib "$stored")" "$(awk -v a="$content" -v b="$stored" 'BEGIN { printf "%.2f", a / b }')"
}

say "tree: $(find "$tree" -type f | wc -l) files, $(mib "$content"); seconds, wall clock; the source is in memory, the copy is cold for diff"
printf '%-16s %10s %14s %14s %10s\n' '' 'cp -a' 'diff -r cold' 'stored' 'ratio'
for _ in $(seq "$rounds"); do
    measure 'ext4' ext4
    measure 'terrane lz4' terrane lz4
    measure 'terrane zstd-3' terrane zstd-3
done
