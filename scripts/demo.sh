#!/usr/bin/env bash
# A pool in a sparse file, mounted, with a real source tree in it. A second run goes on with what is there.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

dir=${TERRANE_DEMO_DIR:-$top/demo}
export TERRANE_STATE_DIR=$dir/state
mount=$dir/mnt

clean() {
    [ -e "$dir" ] || { say "nothing to clean"; return; }
    [ -e "$dir/.terrane-demo" ] || die "$dir is not a demo of ours; it is left alone"
    unmount "$mount"
    is_mounted "$mount" && die "$mount is in use; leave it and try again"
    rm -rf --one-file-system "$dir"
    say "removed $dir"
}

copy_tree() {
    local archive
    archive=$(ls /usr/src/linux-source-6.1.tar.* 2>/dev/null | head -n 1 || true)
    if [ -n "$archive" ]; then
        say "unpacking $archive"
        tar -xf "$archive" -C "$mount"
    else
        say "copying /usr/share and /usr/lib"
        mkdir -p "$mount/usr"
        cp -a /usr/share /usr/lib "$mount/usr/"
    fi
}

[ "${1:-}" = clean ] && { clean; exit; }

"$top/scripts/setup.sh" demo
can_mount || die "/dev/fuse cannot be opened here: load the module fuse, or give the container the device"
say "building (the first time this takes a few minutes)"
build_terrane

mkdir -p "$mount" "$TERRANE_STATE_DIR"
: > "$dir/.terrane-demo"
if [ ! -e "$dir/pool.img" ]; then
    "$terrane" pool create demo "$dir/pool.img" --size 8G -o compression=zstd-3
fi
is_mounted "$mount" || "$terrane" mount demo "$mount"
if [ ! -e "$dir/copied" ]; then
    started=$SECONDS
    copy_tree
    "$terrane" sync demo
    say "copied in $((SECONDS - started)) s"
    : > "$dir/copied"
fi

content=$(du -s --apparent-size --block-size=1 "$mount" | cut -f1)
files=$(find "$mount" -type f | wc -l)
stored=$(stored_bytes "$dir/pool.img")
cat <<EOT

  $files files, $(mib "$content") of content
  $(mib "$stored") in $dir/pool.img: $(awk -v a="$content" -v b="$stored" 'BEGIN { printf "%.2f", a / b }') to 1, with checksums and two copies of all metadata

Go on:
  cd $mount                                  it is a file system
  export TERRANE_STATE_DIR=$TERRANE_STATE_DIR
  $terrane pool status demo
  $terrane umount $mount
  $terrane check demo                         walks everything and verifies every checksum
  $terrane debug uberblock demo               how it looks below
  make demo-clean                            removes all of it
EOT
