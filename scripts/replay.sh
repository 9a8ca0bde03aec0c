#!/usr/bin/env bash
# One seed of the simulator again: as an ordinary life, as one on a crowded device, and with every fault.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
[ -n "${1:-}" ] || die "which seed? make replay SEED=113"
export RUST_LOG=${RUST_LOG:-info}
status=0
for life in "replay --seed $1" "replay --crowded --seed $1" "faults --seeds $1..$(($1 + 1))"; do
    say "== terrane-sim $life"
    # shellcheck disable=SC2086 -- words of a command
    cargo run --quiet --release -p terrane-sim -- $life || status=$?
done
[ "$status" = 0 ] && say "seed $1: nothing failed"
exit "$status"
