#!/usr/bin/env bash
# Fuzz targets, one after the other, each for so many seconds: scripts/fuzz.sh [SECONDS] [TARGET...]
#
# What was found before is in fuzz/corpus and is where it begins. Ends at the first input that breaks a promise; fuzz/README.md says
# how to repeat it.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
scripts/setup.sh fuzz
seconds=${1:-600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(micro tiny fat changes nvlist attributes lz4 zstd gzip lzjb zle labels records tables batches
    snapshots parts dead_entries node_keys shared log log_records bucket)
# No sanitizer: there is no unsafe code of ours to watch, blocks are expanded into fenced memory, and without one the stable compiler serves.
cargo fuzz build --sanitizer none
built=fuzz/target/$(rustc -vV | sed -n 's/^host: //p')/release
"$built/seeds" tests/vectors/{zap,nvlist,sa,compress} fuzz/corpus
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    log=fuzz/artifacts/$target.log
    # An input that takes five minutes hangs, even where the machine was suspended meanwhile, and one that takes 1 GiB was not bounded by its size.
    "$built/$target" "fuzz/corpus/$target" -max_total_time="$seconds" -timeout=300 -rss_limit_mb=1024 -max_len=10000 \
        -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 >"$log" 2>&1 ||
        { grep -A 4 panicked "$log" || tail -n 20 "$log"; die "fuzz target $target: see $log"; }
    say "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions in $seconds s, clean"
done
