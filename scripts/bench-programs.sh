#!/usr/bin/env bash
# What programs take on Terrane and its peers: tar, cp, git, cargo, npm and rm; processor time of the server, and requests of the kernel.
#
#   scripts/bench-programs.sh [--peers terrane,null,ext4,btrfs-zstd,zfs-off] [--reps 1]
#
# Needs root (loop devices), 8 GiB for the image below TERRANE_BENCH_DIR (default: target/), and once a registry for npm's packages.
# NO_BUILD=1 takes the programs that were built before.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

peers=terrane,null,ext4,btrfs-zstd,zfs-off reps=1
while [ $# -gt 0 ]; do
    case $1 in
        --peers) peers=$2; shift 2 ;;
        --reps) reps=$2; shift 2 ;;
        *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
programs="terrane-cli terrane-null"
. "$top/scripts/bench-base.sh"

# The inputs lie on the machine's disk, and in its cache.
tar -cf "$work/small.tar" -C "$corpus" small
git clone -q --bare --no-hardlinks "$top" "$work/origin.git"
packages="webpack@5 eslint@8 typescript@5 express@4"
npm_cache=$base/npm-cache
if ! command -v npm >/dev/null; then
    loud "SKIPPED in part: no npm"
    packages=
elif [ ! -e "$npm_cache/done" ]; then
    say "fetching npm's packages"
    mkdir "$work/fetch"
    if (cd "$work/fetch" && npm install --silent --no-audit --no-fund --ignore-scripts --cache "$npm_cache" $packages >/dev/null); then
        touch "$npm_cache/done"
    else
        loud "SKIPPED in part: npm found no registry"
        packages=
    fi
    rm -rf "$work/fetch"
fi

export TERRANE=$terrane TOP=$top PACKAGES=$packages NPM_CACHE=$npm_cache
for rep in $(seq "$reps"); do
    for peer in ${peers//,/ }; do
        case $peer in zfs-*) command -v zfs-fuse >/dev/null || { loud "SKIPPED: no zfs-fuse"; continue; } ;; esac
        export PEER=$peer
        printf '%s, repetition %d, load %s\n' "$peer" "$rep" "$(cut -d ' ' -f 1 /proc/loadavg)" >&2
        "$peer_script" run python3 "$top/scripts/programs.py" "$peer" "$MNT" "$work" >>"$work/rows"
    done
done
python3 "$top/scripts/programs.py" table "$work/rows"
say "load at the end: $(cut -d ' ' -f 1-3 /proc/loadavg)"
