#!/usr/bin/env bash
# All night: every seed and corruption that `make test` only samples, then the long mounted suite, until something breaks.
#
# TERRANE_SOAK=1 tells tests to run whole; TERRANE_ROUNDS limits the rounds (default 1; 0: for ever). Each round has seeds of its own.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
scripts/setup.sh test
export TERRANE_SOAK=1
rounds=${TERRANE_ROUNDS:-1}
round=0
while [ "$rounds" = 0 ] || [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    TERRANE_SEED_BASE=$(($(date +%s) * 1000))
    export TERRANE_SEED_BASE
    say "== round $round, seed base $TERRANE_SEED_BASE"
    cargo test --release --quiet --workspace
    cargo build --release --quiet -p terrane-cli
    scripts/mounted.sh --soak
done
say "soak: $round rounds passed"
