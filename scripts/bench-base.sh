# Sourced by the benchmarks that run on peers, with `programs` (packages to build) set, and `image` if it lies elsewhere. Makes what they
# need: programs (not with NO_BUILD), the image, the corpus, and a place of its own for the run, which is unmounted and removed at its end.

[ "$(id -u)" = 0 ] || die "root is needed for loop devices and for dropping caches"
can_mount || { loud "SKIPPED: /dev/fuse cannot be opened here"; exit 0; }
"$top/scripts/setup.sh" bench
base=${TERRANE_BENCH_DIR:-${CARGO_TARGET_DIR:-$top/target}/bench}
mkdir -p "$base"
# shellcheck disable=SC2046,SC2086
[ -n "${NO_BUILD:-}" ] || (cd "$top" && cargo build --quiet --release $(printf ' -p %s' $programs))

# One image for all, written in full: what a file system on a sparse file pays for is the disk's allocation.
image=${image:-$base/peers.img}
size=$((${TERRANE_BENCH_GIB:-8} << 30))
if [ ! -f "$image" ] || [ "$(stat -c %s "$image")" != "$size" ] || [ "$(stored_bytes "$image")" -lt "$size" ]; then
    say "writing the image: $image"
    head -c 64M /dev/urandom >"$base/noise"
    rm -f "$image"
    for _ in $(seq $((size >> 26))); do cat "$base/noise"; done | dd of="$image" bs=1M iflag=fullblock oflag=direct status=none
    rm -f "$base/noise"
    sync "$image"
fi

# The corpus: 1 GiB of a source tree as one file, and its arch/ as small files.
corpus=$base/corpus
if [ ! -e "$corpus/done" ]; then
    rm -rf "$corpus"
    mkdir -p "$corpus"
    archive=$(ls /usr/src/linux-source-6.1.tar.* 2>/dev/null | head -n 1 || true)
    if [ -n "$archive" ]; then
        say "unpacking $archive"
        xz -dc "$archive" | tee >(head -c 1G >"$corpus/large"; cat >/dev/null) | tar -x -C "$corpus" --wildcards 'linux-source-*/arch'
        mv "$corpus"/linux-source-*/arch "$corpus/small"
    else
        loud "no linux-source here: /usr stands in for it, and sizes are not those of the goals"
        tar -cf - -C /usr share lib 2>/dev/null | head -c 1G >"$corpus/large" || true
        mkdir "$corpus/small"
        tar -cf - -C /usr include 2>/dev/null | tar -xf - -C "$corpus/small"
    fi
    touch "$corpus/done"
fi

work=$(mktemp -d "$base/run.XXXXXX")
export IMG=$image MNT=$work/mnt WORK=$work
mkdir -p "$MNT"
peer_script=$top/scripts/bench-peer.sh
PEER=none
cleanup() {
    export PEER
    "$peer_script" down >/dev/null 2>&1 || true
    unmount "$MNT"
    is_mounted "$MNT" || rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
