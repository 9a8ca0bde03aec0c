#!/usr/bin/env bash
# All night: every seed and corruption that `make test` only samples, then the long suites on a real mount, until something breaks.
#
# TERRANE_SOAK_ROUNDS limits the rounds (default 1; 0: for ever). Each round has seeds of its own.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
scripts/setup.sh test
scripts/setup.sh suites
rounds=${TERRANE_SOAK_ROUNDS:-1}
round=0
sim() { say "== $*"; env "$@"; }
scripts/setup.sh deb
while [ "$rounds" = 0 ] || [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    base=$(date +%s)
    export TERRANE_SEED_BASE=$base
    say "round $round, seed base $base"
    cargo test --release --quiet --workspace
    # Every write of the small lives, not a sample of them; every bit of the image, not a thousand.
    sim TERRANE_SEEDS=2000 TERRANE_STRIDE=1 cargo test --release --quiet -p terrane-sim --test all crash::
    sim TERRANE_SEEDS=1000 TERRANE_STRIDE=1 cargo test --release --quiet -p terrane-sim --test all collect::
    # The intent log: all sequences of two calls, a sample of those of three.
    sim TERRANE_SEEDS=3000 TERRANE_STRIDE=1 cargo test --release --quiet -p terrane-sim --test all logged::
    sim TERRANE_ACE_STRIDE=1 TERRANE_ACE_STRIDE_OF_THREE=20011 cargo test --release --quiet -p terrane-sim --test all ace::
    sim TERRANE_SEEDS=500 cargo test --release --quiet -p terrane-sim --test all -- faults:: --skip data_set_faults::
    sim TERRANE_FLIPS=18446744073709551615 TERRANE_LIES=100000 cargo test --release --quiet -p terrane-sim --test hostile
    sim TERRANE_SEEDS=2000 cargo test --release --quiet -p terrane-sim --test all -- snapshots:: data_set_faults:: hole_births:: --skip many_snapshots::
    sim TERRANE_SEEDS=2000 TERRANE_STRIDE=1 cargo test --release --quiet -p terrane-sim --test all -- clones:: many_snapshots:: --skip full_clones::
    sim TERRANE_ROUNDS=100 cargo test --release --quiet -p terrane-sim --test all full::
    sim TERRANE_SEEDS=200 cargo test --release --quiet -p terrane-sim --test all attributes::
    # A million operations on ZAPs.
    sim TERRANE_ZAP_LIVES=500 cargo test --release --quiet -p terrane-zap --test all lives::
    say '== fuzz targets'
    scripts/fuzz.sh 600
    cargo build --release --quiet -p terrane-cli -p terrane-preload
    scripts/mounted.sh --soak
    scripts/buckets.sh --soak
    scripts/zoned.sh --soak
    scripts/packaged.sh
    scripts/life.sh --soak
    scripts/kills.sh --soak
    scripts/suites.sh --soak
    scripts/xattrs.sh
done
say "soak: $round rounds passed"
