#!/usr/bin/env bash
# One peer of `make bench-peers`: makes it on the image, makes it cold, takes it down, or does all of it around a command.
#
#   PEER=ext4 IMG=/path/image MNT=/path/mountpoint WORK=/path/scratch bench-peer.sh make|remount|down|run COMMAND...
#
# PEER: ext4, xfs, btrfs, btrfs-zstd; zfs-off, zfs-gzip, ...; null; terrane[-COMPRESSION][-16k|-1m][-sa|-dir][-fragile], where terrane
# alone has its defaults and -fragile is mounted with crashproof=off; terrane-library, terrane-library-dir: nothing is made or mounted,
# the command does all of that in its own process.
# ON_LOOP: Terrane's pool lies on a loop device, too. READ_MB_PER_S: a loop device that reads no faster (cgroup 1), for Terrane too; not for zfs.
# The image is a file that was written in full: otherwise the disk's allocation would be measured too, and differ from peer to peer.
# What is run finds the commands for --between-cmd in COLD and ATTRIBUTES, in SYNC one that commits where syncfs does not reach, and in
# ZFS_DAEMON the process id of zfs-fuse.
set -euo pipefail
: "${PEER:?}" "${IMG:?}" "${MNT:?}" "${WORK:?}"
self=$(realpath "${BASH_SOURCE[0]}")
. "$(dirname "$self")/pool.sh"
export PEER IMG MNT WORK TERRANE_STATE_DIR=$WORK/state
null=${TERRANE_NULL:-$(dirname "$terrane")/terrane-null}

drop() { sync "$IMG"; echo 3 >/proc/sys/vm/drop_caches; }
# A loop device on the image.
attach() {
    losetup --direct-io=on -f "$IMG"
    throttle "$((${READ_MB_PER_S:-0} * 1000000))"
}
# Bytes a second, 0: as many as can be.
throttle() {
    local file=/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device
    [ ! -w "$file" ] || echo "$(lsblk -dnro MAJ:MIN "$(loop)") $1" >"$file"
}
# What Terrane's pool lies on.
store() { if on_loop; then loop; else echo "$IMG"; fi; }
on_loop() { [ -n "${READ_MB_PER_S:-}${ON_LOOP:-}" ]; }
loop() { losetup -j "$IMG" -n -O NAME | tr -d ' ' | head -n 1; }
kernel_mount() {
    case $PEER in
        btrfs) mount -t btrfs -o nodiscard "$(loop)" "$MNT" ;;
        btrfs-zstd) mount -t btrfs -o nodiscard,compress=zstd:3 "$(loop)" "$MNT" ;;
        *) mount -t "$PEER" "$(loop)" "$MNT" ;;
    esac
}

# lz4, zstd3, fast1, gzip6, auto, off, ...; a record size after it.
terrane_properties() {
    local word rest=${PEER#terrane}
    for word in ${rest//-/ }; do
        case $word in
            [0-9]*k) printf -- '-o recordsize=%s ' "${word%k}K" ;;
            [0-9]*m) printf -- '-o recordsize=%s ' "${word%m}M" ;;
            gzip[1-9]) printf -- '-o compression=gzip-%s ' "${word#gzip}" ;;
            fast[1-9]*) printf -- '-o compression=zstd-fast-%s ' "${word#fast}" ;;
            auto) printf -- '-o compression=zstd-auto ' ;;
            fragile) ;;
            sa | dir) printf -- '-o xattr=%s ' "$word" ;;
            zstd*) printf -- '-o compression=zstd-%s ' "${word#zstd}" ;;
            *) printf -- '-o compression=%s ' "$word" ;;
        esac
    done
}

make_peer() {
    case $PEER in
        null) "$null" "$MNT" ;;
        *-library | *-library-dir) ;;
        terrane*)
            on_loop && attach
            mkdir -p "$TERRANE_STATE_DIR"
            rm -f "$TERRANE_STATE_DIR/pools"
            # shellcheck disable=SC2046
            "$terrane" pool create bench "$(store)" --force --no-discard $(terrane_properties) ${TERRANE_POOL_OPTIONS:-}
            drop
            terrane_mount
            ;;
        zfs-*)
            zpool create -f -m "$MNT" bench "$IMG"
            zfs set compression="${PEER#zfs-}" bench
            ;;
        *)
            wipefs -qa "$IMG"
            attach
            case $PEER in
                ext4) mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$(loop)" ;;
                xfs) mkfs.xfs -q -f -K "$(loop)" ;;
                btrfs | btrfs-zstd) mkfs.btrfs -q -f -K "$(loop)" >/dev/null ;;
                *) die "peer $PEER is not known" ;;
            esac
            kernel_mount
            ;;
    esac
}

terrane_mount() {
    local options=nodiscard${TERRANE_MOUNT_OPTIONS:+,$TERRANE_MOUNT_OPTIONS}
    case $PEER in *-fragile*) options=$options,crashproof=off ;; esac
    "$terrane" mount bench "$MNT" -o "$options"
}

remount() {
    case $PEER in
        # It would forget everything: only the kernel's caches can be cold.
        null) echo 3 >/proc/sys/vm/drop_caches ;;
        *-library | *-library-dir) drop ;;
        terrane*) "$terrane" umount "$MNT"; drop; terrane_mount ;;
        zfs-*) zpool export bench; drop; zpool import -d "$(dirname "$IMG")" bench ;;
        *) umount "$MNT"; drop; kernel_mount ;;
    esac
}

down() {
    case $PEER in
        terrane*) is_mounted "$MNT" && "$terrane" umount "$MNT" ;;
        zfs-*) zpool destroy -f bench ;;
        *) is_mounted "$MNT" && umount "$MNT" ;;
    esac || true
    local device
    device=$(loop)
    [ -n "$device" ] || return 0
    throttle 0
    losetup -d "$device"
}

# A private daemon in a private mount namespace, so that it cannot meet another one; configured as Debian does it.
in_zfs_namespace() {
    local dir daemon rc=0
    dir=$(mktemp -d "$WORK/zfs.XXXXXX")
    mkdir -p /var/run/zfs /var/lib/zfs
    mount -t tmpfs tmpfs /var/run/zfs
    mount -t tmpfs tmpfs /var/lib/zfs
    printf '%s\n' 'vdev-cache-size = 10' 'max-arc-size = 100' zfs-prefetch-disable enable-xattr \
        'fuse-attr-timeout = 3600' 'fuse-entry-timeout = 3600' 'fuse-mount-options = default_permissions' >"$dir/zfsrc"
    mount --bind "$dir/zfsrc" /etc/zfs/zfsrc
    ulimit -v unlimited; ulimit -s unlimited; ulimit -c 0
    zfs-fuse -n --no-kstat-mount --pidfile "$dir/pid" >"$dir/log" 2>&1 &
    daemon=$!
    export ZFS_DAEMON=$daemon
    for _ in $(seq 40); do [ -S /var/run/zfs/zfs_socket ] && break; sleep 0.25; done
    around "$@" || rc=$?
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
    rm -rf "$dir"
    return "$rc"
}

around() {
    local rc=0
    make_peer
    export COLD="'$self' remount" ATTRIBUTES="echo 2 >/proc/sys/vm/drop_caches" SYNC=
    case $PEER in terrane*) SYNC="'$terrane' sync bench" ;; esac
    "$@" || rc=$?
    down
    return "$rc"
}

case ${1:-} in
    make) make_peer ;;
    remount) remount ;;
    down) down ;;
    run)
        shift
        case $PEER in
            zfs-*)
                if [ -z "${IN_ZFS_NAMESPACE:-}" ]; then
                    IN_ZFS_NAMESPACE=1 exec unshare -m --propagation private "$self" run "$@"
                fi
                in_zfs_namespace "$@"
                ;;
            *) around "$@" ;;
        esac
        ;;
    *) die "make, remount, down or run" ;;
esac
