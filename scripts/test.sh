#!/usr/bin/env bash
# Everything, from nothing: unit, golden, model, crash and hostile tests, then programs and
# POSIX suites on a real mount, then a summary.
set -uo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top" || exit 1

log=$(mktemp)
trap 'rm -f "$log"' EXIT
lines=() failed=0
step() { # name, command...
    local name=$1 begin=$SECONDS status=0
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    [ "$status" = 0 ] || failed=1
    local counts
    counts=$(awk '
        /^test result:/ { passed += $4; failed += $6; ignored += $8 }
        /^(mounted|life|suites|xattrs|packaged|zoned):/ { passed += $2; failed += $4; ignored += $6 }
        END { if (passed + failed + ignored) printf "%d passed, %d failed, %d skipped", passed, failed, ignored }' "$log")
    lines+=("$(printf '%-28s %-7s %5d s  %s' "$name" "$([ "$status" = 0 ] && echo ok || echo FAILED)" $((SECONDS - begin)) "$counts")")
}

# The same commit tests the same seeds; the next one tests others.
export TERRANE_SEED_BASE=${TERRANE_SEED_BASE:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo 1)}

# A suite that is not there is skipped, and says so.
what_is_needed() { scripts/setup.sh test && { scripts/setup.sh suites || true; }; }
step 'what is needed' what_is_needed
step 'unit, model, crash, hostile' nice -n 5 cargo test --quiet --workspace --no-fail-fast
step 'build for use' nice -n 5 cargo build --quiet --release -p terrane-cli
step 'mounted suite' scripts/mounted.sh
step 'life of a mount' scripts/life.sh
step 'POSIX suites' scripts/suites.sh
step 'attributes and ACLs' scripts/xattrs.sh
step 'what is installed' scripts/packaged.sh --short
step 'zoned drives' scripts/zoned.sh

printf '\nSummary (seed base %s)\n' "$TERRANE_SEED_BASE"
printf '  %s\n' "${lines[@]}"
[ $failed = 0 ] && say 'all passed' || say 'NOT everything passed'
exit $failed
