#!/usr/bin/env bash
# Everything, from nothing: unit, golden, model, crash and hostile tests, then programs and
# POSIX suites on a real mount, then a summary.
set -uo pipefail
. "$(dirname "$0")/pool.sh"
in_own_namespace "$0" "$@"
cd "$top" || exit 1

log=$(mktemp)
trap 'rm -f "$log"' EXIT
lines=() reasons=() failed=0
# Each check or test that failed, with the last it said: suites say "NAME FAILED" and move what it said to the right, cargo has its own way.
why() { # log
    awk -v most=10 '
        function told(   line) {
            if (name != "") print name
            for (line = count > most ? count - most : 0; line < count; line++) print "    " said[line]
            name = ""; count = 0; of_cargo = 0
        }
        /^---- .* stdout ----$/ { told(); name = $2; of_cargo = 1; next }
        /^failures:$/ { told(); next }
        of_cargo && /^stack backtrace:/ { of_cargo = 2 }
        of_cargo { if (NF && of_cargo == 1) said[count++] = $0; next }
        /^[^ ]/ && /FAILED/ && !/^test result:/ && !/ --- FAILED$/ { told(); name = $0; next }
        name != "" && /^    / { said[count++] = substr($0, 5); next }
        { told() }
        END { told() }' "$1" | cut -c 1-300
}
step() { # name, command...
    local name=$1 begin=$SECONDS status=0
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    local counts reason
    if [ "$status" != 0 ]; then
        failed=1
        reason=$(why "$log")
        reasons+=("$name: ${reason:-"$(tail -n 10 "$log")"}")
    fi
    counts=$(awk '
        /^test result:/ { passed += $4; failed += $6; ignored += $8 }
        /^(mounted|life|kills|suites|xattrs|packaged|zoned|buckets):/ { passed += $2; failed += $4; ignored += $6 }
        END { if (passed + failed + ignored) printf "%d passed, %d failed, %d skipped", passed, failed, ignored }' "$log")
    lines+=("$(printf '%-28s %-7s %5d s  %s' "$name" "$([ "$status" = 0 ] && echo ok || echo FAILED)" $((SECONDS - begin)) "$counts")")
}

# The same commit tests the same seeds; the next one tests others.
export TERRANE_SEED_BASE=${TERRANE_SEED_BASE:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo 1)}

# Tests have their simulated drives in memory. Where there is less than 2 GiB of it, one test runs at a time. Compilers need more than that
# themselves: build first.
memory_mib() {
    local path limits=(/dev/null)
    path=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
    [ -n "$path" ] && limits+=("/sys/fs/cgroup/memory$path/memory.limit_in_bytes" /sys/fs/cgroup/memory/memory.limit_in_bytes)
    path=$(sed -n 's/^0:://p' /proc/self/cgroup)
    [ -n "$path" ] && limits+=("/sys/fs/cgroup$path/memory.max" /sys/fs/cgroup/memory.max)
    limits=($(cat "${limits[@]}" 2>/dev/null | grep -v max) $(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) * 1024)))
    echo $(($(printf '%s\n' "${limits[@]}" | sort -n | head -n 1) / 1048576))
}
if [ -z "${RUST_TEST_THREADS:-}" ] && [ "$(memory_mib)" -lt 2048 ]; then
    say "$(memory_mib) MiB of memory: one test at a time"
    export RUST_TEST_THREADS=1
fi

# A suite that is not there is skipped, and says so.
what_is_needed() { scripts/setup.sh test && { scripts/setup.sh suites || true; }; }
step 'what is needed' what_is_needed
step 'unit, model, crash, hostile' nice -n 5 cargo test --quiet --workspace --no-fail-fast
# The tests of the workspace have built it. A build of this program alone has other features, and builds all crates again.
sim=${CARGO_TARGET_DIR:-$top/target}/debug/terrane-sim
[ ! -x "$sim" ] || export TERRANE_SIM=$sim
step 'build for use' nice -n 5 cargo build --quiet --release -p terrane-cli -p terrane-preload
step 'mounted suite' scripts/mounted.sh
step 'life of a mount' scripts/life.sh
step 'kills' scripts/kills.sh
step 'POSIX suites' scripts/suites.sh
step 'attributes and ACLs' scripts/xattrs.sh
step 'what is installed' scripts/packaged.sh --short
step 'object stores' scripts/buckets.sh
step 'zoned drives' scripts/zoned.sh

printf '\nSummary (seed base %s)\n' "$TERRANE_SEED_BASE"
printf '  %s\n' "${lines[@]}"
# Last, since the end of a long run is what is at hand.
[ $failed = 0 ] && say 'all passed' || { printf '\n%s\n' "${reasons[@]}" && say 'NOT everything passed'; }
exit $failed
