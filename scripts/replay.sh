#!/usr/bin/env bash
# One seed again, with everything it has to say. The simulator's tests read TERRANE_SEED and then run that one only.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
[ -n "${1:-}" ] || die "which seed? make replay SEED=113"
export TERRANE_SEED=$1 RUST_LOG=${RUST_LOG:-info}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
cargo test --quiet -p terrane-sim -- --nocapture 2>&1 | tee "$log" || status=$?
# A replay that ran nothing has proved nothing.
awk '/^test result:/ { ran += $4 + $6 } END { exit ran == 0 }' "$log" || die "no test of terrane-sim ran"
exit "$status"
