# Sourced by the other scripts: where the program is, and pools that come and go with a script.
#
# Everything that was started is ended by its process id, and everything that was mounted is unmounted, whatever happens.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin"
terrane=${TERRANE:-${CARGO_TARGET_DIR:-$top/target}/release/terrane}

say() { printf '%s\n' "$*"; }
loud() { printf '\n*** %s ***\n\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Goes on in a mount namespace of its own. Else a namespace that another program makes meanwhile (a container, a service with mounts
# of its own) has a copy of our mounts, and they do not end when we unmount them.
in_own_namespace() { # the script and its words
    [ -z "${TERRANE_OWN_NAMESPACE:-}" ] && [ "$(id -u)" = 0 ] || return 0
    unshare --mount --propagation slave true 2>/dev/null || return 0
    export TERRANE_OWN_NAMESPACE=1
    exec unshare --mount --propagation slave bash "$@"
}

build_terrane() { (cd "$top" && cargo build --quiet --release -p terrane-cli -p terrane-preload); }

# Without /dev/fuse nothing can be mounted; that is said and counted, never passed over in silence.
can_mount() { [ -r /dev/fuse ] && [ -w /dev/fuse ] && { [ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null; }; }

is_mounted() { grep -qs " $(realpath -ms "$1") " /proc/self/mountinfo; }

# Ends a mount, a dead one too.
unmount() {
    local dir=$1
    is_mounted "$dir" || return 0
    "$terrane" umount "$dir" >/dev/null 2>&1 || fusermount3 -u "$dir" >/dev/null 2>&1 || umount "$dir" >/dev/null 2>&1 || true
    is_mounted "$dir" || return 0
    fusermount3 -uz "$dir" >/dev/null 2>&1 || umount -l "$dir" >/dev/null 2>&1 || true
}

mib_free() { df -Pm "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }

# A directory for pools that a script makes: in memory if there is space, since flushes of a real disk only cost time here.
work_dir() {
    local base=${TERRANE_TEST_DIR:-}
    if [ -z "$base" ]; then
        base=${TMPDIR:-/tmp}
        [ -w /dev/shm ] && [ "$(mib_free /dev/shm)" -gt 6000 ] && base=/dev/shm
    fi
    mktemp -d "$base/terrane.XXXXXX"
}

# Bytes a file takes on its disk.
stored_bytes() { du --block-size=1 "$1" | cut -f1; }

mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
