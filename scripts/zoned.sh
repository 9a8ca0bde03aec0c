#!/usr/bin/env bash
# Tests on host-managed zoned drives: the mounted suite, files that come and go while a drive is nearly full, write pointers moved
# behind our back, power cuts under load.
#
#   scripts/zoned.sh                short, as in `make test`
#   scripts/zoned.sh --full         `make test-zoned`: every kind of drive, the whole mounted suite, 20 power cuts for each lasting drive
#   scripts/zoned.sh --soak         the same for longer
#   scripts/zoned.sh check_behind   only these
#
# Drives come from, in this order: $ZONED_RUNNER, a program that runs a command on a kernel with such drives (called as
# `$ZONED_RUNNER [its options] -- COMMAND`; a clone that has ../shared/zuml/zuml beside it takes that); this machine's own null_blk,
# for root; the drive named in $TERRANE_ZONED_DEVICE, whose content is lost. Only the first can cut the power.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

short=(check_limit_4 check_cases check_cuts_odd)
full=(check_limit_4 check_limit_14 check_odd check_behind check_cases check_rebuild check_cache check_large_zones check_cuts check_cuts_odd)
cuts=3 rounds=1 mounted=(check_ends) cases=(case_apart case_hints case_reset)
case ${1:-} in
    --full) shift; short=("${full[@]}") rounds=2 mounted=() cases=() cuts=20 ;;
    --soak) shift; short=("${full[@]}") rounds=4 mounted=() cases=(--soak) cuts=40 ;;
    # On the kernel with the drives: one of the functions below.
    --inside) shift; inside=1 ;;
esac

# ---- On the kernel with the drives ------------------------------------------------------------------------------------------

need_blkzone() { command -v blkzone >/dev/null || { say "    skipped: blkzone (util-linux) is not installed"; exit 77; }; }

# A pool on $device, mounted at $mnt.
begin_inside() {
    device=$1
    work=$(mktemp -d "${TMPDIR:-/tmp}/terrane-zoned.XXXXXX")
    mnt=$work/mnt
    export TERRANE_STATE_DIR=$work/state
    mkdir -p "$mnt" "$TERRANE_STATE_DIR"
    trap 'unmount "$mnt"; is_mounted "$mnt" || rm -rf --one-file-system "$work"' EXIT
}

# Zones that are neither empty nor full, of those that keep a pointer.
active_zones() { blkzone report "$1" | grep -cE 'zcond: ?[234]\(' || true; }

inside_mounted() { # device, checks...
    local device=$1
    shift
    TERRANE_POOL_DEVICE=$device "$top/scripts/mounted.sh" "$@"
}

inside_cases() { # device, words...
    "$top/scripts/zoned-cases.sh" "$@"
}

# What others wrote to find wrong bytes, on the pool's largest zones.
inside_fsx() { # device, operations
    local device=$1
    command -v fsx >/dev/null || { say "    skipped: fsx is not installed"; exit 77; }
    begin_inside "$device"
    "$terrane" pool create p "$device" --force
    "$terrane" mount p "$mnt"
    fsx -N "$2" -S 1 "$mnt/fsx" >"$work/fsx.log" 2>&1 || { tail -n 20 "$work/fsx.log"; return 1; }
    "$terrane" umount "$mnt"
    "$terrane" check p
}

# The tables of zones are lost, and made again from what the zones tell of themselves: everything is there, and the pool goes on.
inside_rebuild() { # device
    begin_inside "$1"
    "$terrane" pool create p "$device" --force
    "$terrane" mount p "$mnt"
    python3 "$top/scripts/churn.py" run "$mnt" "$work/model" 80 0.5
    "$terrane" umount "$mnt"
    "$terrane" check p --rebuild-index
    "$terrane" check p
    "$terrane" mount p "$mnt"
    python3 "$top/scripts/churn.py" verify "$mnt" "$work/model"
    rm -rf "$mnt"/*
    "$terrane" sync p
    python3 "$top/scripts/churn.py" run "$mnt" "$work/model" 90 0.5
    "$terrane" umount "$mnt"
    "$terrane" check p
}

# Files come, change and go at 90 % for so many times the drive's size; then all of them are right, mounted anew.
inside_churn() { # device, percent, rounds
    begin_inside "$1"
    "$terrane" pool create p "$device" --force
    "$terrane" mount p "$mnt"
    python3 "$top/scripts/churn.py" run "$mnt" "$work/model" "$2" "$3"
    "$terrane" sync p
    "$terrane" pool status p
    "$terrane" umount "$mnt"
    "$terrane" check p
    "$terrane" mount p "$mnt"
    python3 "$top/scripts/churn.py" verify "$mnt" "$work/model"
    # All of it can go, and the drive is as good as new.
    rm -rf "$mnt"/*
    "$terrane" sync p
    python3 "$top/scripts/churn.py" run "$mnt" "$work/model" "$2" 0
    "$terrane" umount "$mnt"
    "$terrane" check p
}

# Somebody wrote to open zones, and finished them, while the pool was not imported: it is taken up, and no space is lost.
inside_behind() { # device
    need_blkzone
    begin_inside "$1"
    "$terrane" pool create p "$device" --force
    "$terrane" mount p "$mnt"
    head -c 3M /dev/urandom >"$mnt/kept"
    cp "$mnt/kept" "$work/kept"
    "$terrane" umount "$mnt"
    local round sector opened
    opened=$(active_zones "$device")
    for round in write finish write; do
        blkzone report "$device" | grep -E 'zcond: ?[234]\(' | sed -E 's/.*start: (0x[0-9a-f]+).*wptr (0x[0-9a-f]+).*/\1 \2/' |
            while read -r sector pointer; do
                if [ $round = finish ]; then
                    blkzone finish -o "$sector" -c 1 "$device"
                else
                    dd if=/dev/urandom of="$device" bs=4096 count=1 seek=$(((sector + pointer) / 8)) oflag=direct conv=notrunc status=none
                fi
            done
        "$terrane" mount p "$mnt"
        cmp "$mnt/kept" "$work/kept"
        head -c 1M /dev/urandom >"$mnt/more"
        "$terrane" umount "$mnt"
        "$terrane" check p
    done
    # What the strangers took comes back when zones are collected: the drive can be filled as if they had not been.
    "$terrane" mount p "$mnt"
    rm "$mnt/more"
    # Nobody forgets a zone that was finished behind his back: as many are open as there were.
    "$terrane" sync p
    [ "$(active_zones "$device")" -le "$opened" ] || { say "    $(active_zones "$device") zones are open, $opened were"; return 1; }
    python3 "$top/scripts/churn.py" run "$mnt" "$work/model" 90 0.5
    cmp "$mnt/kept" "$work/kept"
    "$terrane" umount "$mnt"
    "$terrane" check p
}

# Takes the pool up after a power cut, looks for every promised file, and writes until the power goes again.
inside_promises() { # device, directory that outlives us, "load" or "verify"
    begin_inside "$1"
    local kept=$2 what=$3 n=0
    "$terrane" pool import "$device" >/dev/null
    "$terrane" mount p "$mnt"
    # A line that was being written when the power went was not promised yet.
    grep -E '^[0-9a-f]{64}  [a-z0-9/]+$' "$kept/manifest" >"$work/manifest" || true
    [ ! -s "$work/manifest" ] || (cd "$mnt" && sha256sum --quiet -c "$work/manifest") || { say "a promised file is not there, or is not right"; return 1; }
    say "    $(wc -l <"$work/manifest") promised files found"
    "$terrane" umount "$mnt"
    "$terrane" check p
    [ "$what" = load ] || return 0
    "$terrane" mount p "$mnt"
    # Half of what was promised goes, so that zones die; it is no longer promised before it goes.
    awk 'NR % 2' "$work/manifest" >"$kept/manifest.new"
    sync "$kept/manifest.new"
    mv "$kept/manifest.new" "$kept/manifest"
    sync "$kept"
    awk 'NR % 2 == 0 { print $2 }' "$work/manifest" | (cd "$mnt" && xargs -r rm -f)
    mkdir -p "$mnt/kept" "$mnt/load"
    (while :; do
        cp -a /usr/include/linux "$mnt/load/a" && mv "$mnt/load/a" "$mnt/load/b" && rm -rf "$mnt/load/b"
        head -c $((RANDOM * 600)) /dev/urandom >"$mnt/load/c"
    done) &
    while :; do
        n=$((n + 1))
        local name=kept/$(printf '%05d%05d%05d' $RANDOM $RANDOM $n)
        head -c $((RANDOM * 20 + 1)) /dev/urandom >"$work/bytes"
        dd if="$work/bytes" of="$mnt/$name" bs=64K conv=fsync status=none
        printf '%s  %s\n' "$(sha256sum <"$work/bytes" | cut -d' ' -f1)" "$name" >>"$kept/manifest"
        sync "$kept/manifest"
    done
}

# What a pool in a file, whose memory is small, has from a drive that caches: it is fed, read, found again by the next mount, and never
# believed. The pool outlives us as the drive does.
inside_cache() { # device, directory of the pool, "begin", "again" or "damaged", most active zones
    begin_inside "$1"
    local pool=$2/cached.img what=$3 limit=$4 round begun hits
    cached() { "$terrane" pool status -j p | python3 -c 'import json, sys; print(json.load(sys.stdin)["pools"][0]["caches"][0][sys.argv[1]])' "$1"; }
    if [ "$what" = begin ]; then
        rm -f "$pool"
        "$terrane" pool create p "$pool" --size 1G -o compression=off
        "$terrane" pool add p cache "$device" --force
    else
        "$terrane" pool import "$pool" >/dev/null
    fi
    # 64 MiB for blocks of all kinds; the kernel keeps none.
    "$terrane" mount p "$mnt" --memory 128M -o direct_io
    begun=$SECONDS
    while [ "$(cached state)" = loading ] && [ $((SECONDS - begun)) -lt 120 ]; do sleep 0.2; done
    [ "$(cached state)" = normal ] || { say "    the drive is $(cached state)"; return 1; }
    if [ "$what" = begin ]; then
        head -c 160M /dev/urandom >"$mnt/file"
        sha256sum <"$mnt/file" >"$2/cached.sum"
    elif [ "$what" = again ]; then
        [ "$(cached held)" -gt $((64 << 20)) ] || { say "    after a restart it holds $(cached held) bytes"; return 1; }
    fi
    for round in 1 2; do
        [ "$(sha256sum <"$mnt/file")" = "$(cat "$2/cached.sum")" ] || { say "    read $round: other bytes than were written"; return 1; }
        [ "$limit" = 0 ] || [ "$(active_zones "$device")" -le "$limit" ] ||
            { say "    $(active_zones "$device") zones are active, $limit may be"; return 1; }
    done
    hits=$(cached hits)
    say "    $what: $(cached held) bytes held, $hits hits, $(cached damaged) damaged"
    case $what in
        damaged) [ "$(cached damaged)" -gt 0 ] || { say "    nobody noticed flipped bytes"; return 1; } ;;
        *) [ "$hits" -gt 200 ] && [ "$(cached damaged)" = 0 ] || { say "    it is not used, or not sound"; return 1; } ;;
    esac
    "$terrane" umount "$mnt"
    "$terrane" check p
}

inside_create() { # device
    begin_inside "$1"
    "$terrane" pool create p "$device"
}

inside_destroy() { # device
    begin_inside "$1"
    "$terrane" pool import "$device"
    "$terrane" pool destroy p
    [ "$(active_zones "$device")" = 0 ]
    "$terrane" pool create q "$device"
}

inside_refused() { # device
    begin_inside "$1"
    local answer
    answer=$("$terrane" pool create p "$device" 2>&1) && { echo "should have been refused"; return 1; }
    grep -q 'at least 4 zones' <<<"$answer" || { echo "$answer"; return 1; }
}

if [ -n "${inside:-}" ]; then
    what=$1
    shift
    "inside_$what" "$@"
    exit
fi

# ---- Here -------------------------------------------------------------------------------------------------------------------

runner=${ZONED_RUNNER:-}
[ -n "$runner" ] || { [ -x "$top/../shared/zuml/zuml" ] && runner=$top/../shared/zuml/zuml; } || true
own_null_blk() { [ "$(id -u)" = 0 ] && { [ -d /sys/kernel/config/nullb ] || modprobe null_blk nr_devices=0 2>/dev/null; } && [ -d /sys/kernel/config/nullb ]; }

way=
if [ -n "$runner" ]; then
    way=runner
elif own_null_blk; then
    way=null_blk
elif [ -n "${TERRANE_ZONED_DEVICE:-}" ]; then
    way=device
fi
if [ -z "$way" ]; then
    loud "SKIPPED: no zoned drives: no \$ZONED_RUNNER, no null_blk for us, no \$TERRANE_ZONED_DEVICE; their rules are tested on the simulator"
    echo "zoned: 0 passed, 0 failed, 1 skipped"
    exit 0
fi
can_mount || [ "$way" = runner ] || {
    loud "SKIPPED: zoned drives need /dev/fuse, which cannot be opened here"
    echo "zoned: 0 passed, 0 failed, 1 skipped"
    exit 0
}
[ -x "$terrane" ] || build_terrane

kept=$(mktemp -d "${TERRANE_TEST_DIR:-${TMPDIR:-/tmp}}/terrane-zoned.XXXXXX")
# Users who own nothing must reach the mounts below it.
chmod 711 "$kept"
null=
remove_null() {
    [ -n "$null" ] || return 0
    echo 0 >"$null/power"
    rmdir "$null"
    null=
}
trap 'remove_null; rm -rf --one-file-system "$kept"' EXIT
trap 'exit 130' INT TERM

skip() { say "    skipped: $*"; return 77; }

# Runs one of the functions above on a memory-backed drive. The environment of the runner is its own.
on_null() { # MiB:zone MiB:active limit:capacity MiB:conventional zones, function, words...
    local size zone limit capacity conventional spec=$1 what=$2
    IFS=: read -r size zone limit capacity conventional <<<"$spec"
    shift 2
    case $way in
        runner)
            "$runner" --mem $((size + 1536))M --zoned "z0:$spec" --timeout 1800 -- \
                env TERRANE="$terrane" SEED="${SEED:-}" TMPDIR="$kept" "$top/scripts/zoned.sh" --inside "$what" /dev/z0 "$@"
            ;;
        null_blk)
            null=/sys/kernel/config/nullb/terrane$$
            mkdir "$null"
            local pair
            for pair in "size=$size" "zoned=1" "zone_size=$zone" "zone_capacity=${capacity:-$zone}" "zone_nr_conv=${conventional:-0}" \
                "zone_max_open=$limit" "zone_max_active=$limit" memory_backed=1 blocksize=4096 power=1; do
                echo "${pair#*=}" >"$null/${pair%%=*}"
            done
            local device=/dev/terrane$$ status=0
            [ -b "$device" ] || device=/dev/nullb$(cat "$null/index")
            "$top/scripts/zoned.sh" --inside "$what" "$device" "$@" || status=$?
            remove_null
            return $status
            ;;
        device) "$top/scripts/zoned.sh" --inside "$what" "$TERRANE_ZONED_DEVICE" "$@" ;;
    esac
}

# The same on a drive that lasts, under $kept.
on_lasting() { # MiB:zone MiB:capacity MiB:conventional zones, words for the runner, function, words...
    local spec=$1 words=$2 what=$3
    shift 3
    [ "$way" = runner ] || { skip "drives that last need \$ZONED_RUNNER"; return; }
    # shellcheck disable=SC2086 # several words
    "$runner" --mem 2G --zloop "$kept/drive:$spec" $words --timeout 900 -- \
        env TERRANE="$terrane" SEED="${SEED:-}" TMPDIR="$kept" "$top/scripts/zoned.sh" --inside "$what" /dev/zloop0 "$@"
}

# The fewest active zones a pool can live with, and one fewer.
check_limit_4() {
    on_null 256:8:3 refused
    on_null 2048:16:4 mounted "${mounted[@]}"
    on_null 512:8:4 churn 90 "$rounds"
}

check_limit_14() {
    on_null 2048:16:14 mounted "${mounted[@]}"
    on_null 512:4:14 churn 90 "$rounds"
}

# Zones that take less than their size, some of them conventional, no limit.
check_odd() {
    on_null 4096:64:0:48:2 mounted "${mounted[@]}"
    on_null 512:8:0:6:2 churn 90 "$rounds"
    on_null 512:8:0:6:1 churn 90 "$rounds"
}

check_behind() {
    on_null 512:8:14 behind
    on_null 512:8:0:6:2 behind
}

# The meaning of cases that others have.
check_cases() {
    on_null 2048:8:14 cases "${cases[@]}"
    # And where few zones are open, whose streams are shared.
    [ "${#cases[@]}" -gt 1 ] || on_null 2048:32:4 cases "${cases[@]}"
}

check_rebuild() {
    on_null 512:8:14 rebuild
    on_null 512:8:0:6:2 rebuild
}

# A drive as a cache device: of a pool whose file lies elsewhere, with room for few open zones, then of one that lasts, of which every
# 64 KiB lose a bit.
check_cache() {
    on_null 512:8:3 cache "$kept" begin 3
    on_lasting 512:8:6 '' cache "$kept" begin 0
    on_lasting 512:8:6 '' cache "$kept" again 0
    [ -d "$kept/drive" ] || return 0
    python3 - "$kept/drive" <<'PYTHON'
import os, sys
flipped = 0
for path, _, names in os.walk(sys.argv[1]):
    # All but the zone that says whose it is.
    for name in sorted(names):
        if not name.startswith(("seq-", "cnv-")) or name.endswith("-000000"):
            continue
        with open(os.path.join(path, name), "r+b") as zone:
            size = os.fstat(zone.fileno()).st_size
            for at in range(32768, size, 65536):
                zone.seek(at)
                byte = zone.read(1)
                zone.seek(at)
                zone.write(bytes([byte[0] ^ 1]))
                flipped += 1
assert flipped > 1000, flipped
PYTHON
    on_lasting 512:8:6 '' cache "$kept" damaged 0
    rm -rf "$kept/drive"
}

check_large_zones() {
    on_lasting 12288:256 '' churn 15 0.1
    rm -rf "$kept/drive"
    # (generic/781)
    on_lasting 12288:256:256:2 '' fsx 20000
    rm -rf "$kept/drive"
}

# The power goes while files are written, fsync'ed and removed: what was promised is there, and the pool goes on.
cut_power() { # drive
    local spec=$1 round status
    rm -rf "$kept/drive" "$kept/manifest"
    : >"$kept/manifest"
    on_lasting "$spec" '' create || return
    for round in $(seq "$cuts"); do
        status=0
        on_lasting "$spec" "--power-cut $((RANDOM % 5 + 5))" promises "$kept" load || status=$?
        [ "$status" = 137 ] || { say "    round $round: expected the power to go, found status $status"; return 1; }
    done
    on_lasting "$spec" '' promises "$kept" verify
    on_lasting "$spec" '' destroy
    rm -rf "$kept/drive"
}

check_cuts() { cut_power 1024:16; }
check_cuts_odd() { cut_power 1536:32:24:2; }

checks=("${short[@]}")
[ $# -gt 0 ] && checks=("$@")
passed=0 skipped=0 failed=()
for check in "${checks[@]}"; do
    begin=$SECONDS status=0
    printf '%-20s' "$check"
    (set -e; "$check") >"$kept/log" 2>&1 &
    wait $! || status=$?
    case $status in
        0)
            passed=$((passed + 1))
            printf 'ok    %4d s\n' $((SECONDS - begin))
            grep '^    ' "$kept/log" || true
            ;;
        77)
            skipped=$((skipped + 1))
            printf 'SKIPPED\n'
            loud "$check $(grep '^    skipped: ' "$kept/log" | sed 's/^ *//')"
            ;;
        *)
            failed+=("$check")
            printf 'FAILED after %d s\n' $((SECONDS - begin))
            tail -n 60 "$kept/log" | sed 's/^/    /'
            ;;
    esac
done
echo "zoned: $passed passed, ${#failed[@]} failed, $skipped skipped${failed:+ (${failed[*]})}"
[ ${#failed[@]} = 0 ]
