#!/usr/bin/env bash
# Before each commit, in under two minutes when everything was built before.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
# Each commit explores other seeds, and repeats its own exactly.
export TERRANE_SEED_BASE=${TERRANE_SEED_BASE:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo 1)}
step() { say "== $*"; "$@"; }
step scripts/setup.sh check
step cargo deny --log-level error check bans licenses sources
step cargo machete
step cargo fmt --all --check
step cargo fmt --manifest-path fuzz/Cargo.toml --check
step cargo clippy --quiet --workspace --all-targets -- -D warnings
step env RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --workspace
step cargo test --quiet --workspace --lib --bins
step cargo test --quiet -p terrane -p terrane-repo-tests -p terrane-dataset -p terrane-sa
step cargo test --quiet -p terrane-zap --test all golden::
step cargo test --quiet -p terrane-space -p terrane-cache -p terrane-pool --tests
step env TERRANE_SEEDS=200 cargo test --quiet -p terrane-sim --test all crash::random_lives
step env TERRANE_STRIDE=96 TERRANE_SEEDS=4 cargo test --quiet -p terrane-sim --test all collect::
say "checked, seed base $TERRANE_SEED_BASE"
