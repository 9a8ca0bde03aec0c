#!/usr/bin/env bash
# What others learned about zoned file systems, as tests of ours on a host-managed drive: the meaning of some cases of xfstests.
#
#   scripts/zoned-cases.sh DRIVE [--soak] [case_slots ...]
#
# Needs root and a drive whose content may go, of at least 48 zones and 1.5 GB; from 256 zones on nothing is left out. Every case makes its
# own pool on it, and the pool is checked after it. scripts/zoned.sh runs them; on machines that $ZONED_RUNNER makes:
#
#   $ZONED_RUNNER --mem 5G --zoned z0:2048:8:14 -- scripts/zoned-cases.sh /dev/z0
set -euo pipefail
. "$(dirname "$0")/pool.sh"

drive=${1:?a zoned drive} soak=
shift
[ "${1:-}" = --soak ] && { soak=1; shift; }
[ -b "$drive" ] || die "$drive: expected a block device"
can_mount || { loud "SKIPPED: zoned-cases need /dev/fuse, which cannot be opened here"; echo "zoned-cases: 0 passed, 0 failed, 1 skipped"; exit 0; }
work=$(mktemp -d /run/terrane.XXXXXX)
mnt=$work/mnt
export TERRANE_STATE_DIR=$work/state
mkdir -p "$mnt" "$TERRANE_STATE_DIR"
trap 'unmount "$mnt"; is_mounted "$mnt" || rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

queue=/sys/block/$(basename "$(realpath "$drive")")/queue
zone_bytes=$(($(cat "$queue/chunk_sectors") * 512))
slots=$(cat "$queue/max_active_zones")
[ "$slots" -gt 0 ] || slots=14
zones=$(cat "$queue/nr_zones")
# Smaller pools have one or two zones open for data, each of which costs them space: there files lie together, whatever is known of them.
streams_apart=256

noise() { head -c "$1" /dev/urandom; }
skip() { say "    skipped: $*"; exit 77; }
available() { df --output=avail -B1 "$mnt" | tail -n 1; }

# The zones that hold a file: sequence number and bytes of each, those of pointers included.
zones_of() { # files...
    "$terrane" stat --json "$@" | awk -F '[:,]' '
        /"zones": \[/ { inside = 1 } /\]/ { inside = 0 }
        inside && /"bytes"/ { bytes = $2 } inside && /"seq"/ { of[$2 + 0] += bytes } END { for (seq in of) print seq, of[seq] }'
}

# Percent of the first file's bytes that lie in zones where the second has some of its own (more than pointers).
together() { # file, file
    awk 'NR == FNR { if ($2 > 65536) other[$1] = 1; next } { all += $2; if ($1 in other) both += $2 } END { printf "%d\n", both * 100 / all }' \
        <(zones_of "$2") <(zones_of "$1")
}

# Every active slot holds a zone that is nearly full; then synchronous writes, and two writers at once: a zone must be finished to free a slot.
# (btrfs/273)
case_slots() {
    local file pids=() pid big status=0
    for file in $(seq $((slots + 4))); do
        noise $((zone_bytes - (1 << 20))) | dd of="$mnt/nearly$file" bs=1M conv=fsync iflag=fullblock status=none
        "$terrane" sync p
    done
    dd if=/dev/urandom of="$mnt/synchronous" bs=1M count=64 oflag=sync iflag=fullblock status=none
    big=$(($(available) / 3 >> 20))
    [ "$big" -lt 640 ] || big=640
    for file in 1 2; do
        dd if=/dev/urandom of="$mnt/big$file" bs=1M count="$big" conv=fsync iflag=fullblock status=none &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    [ "$status" = 0 ]
    say "    $((slots + 4)) files of nearly a zone, 64 MiB synchronously, two writers of $big MiB; $slots slots"
}

# One writer's file lies in as few zones as it fills, in order. (xfs/636)
case_alone() {
    local count most
    dd if=/dev/urandom of="$mnt/alone" bs=1M count=16 oflag=direct iflag=fullblock status=none
    "$terrane" sync p
    count=$(zones_of "$mnt/alone" | awk '$2 > 65536' | wc -l)
    most=$(((16 << 20) / zone_bytes + 2))
    say "    16 MiB in $count zones"
    [ "$count" -le "$most" ]
}

# Two that write at once, directly and through the page cache, do not share zones. (xfs/640, xfs/641)
case_apart() {
    local flags shared
    [ "$zones" -ge "$streams_apart" ] || skip "$zones zones: streams share them below $streams_apart"
    for flags in direct ''; do
        dd if=/dev/urandom of="$mnt/one" bs=64K count=2048 ${flags:+oflag=$flags} iflag=fullblock status=none &
        dd if=/dev/urandom of="$mnt/two" bs=64K count=2048 ${flags:+oflag=$flags} iflag=fullblock status=none
        wait $!
        "$terrane" sync p
        shared=$(together "$mnt/one" "$mnt/two")
        say "    ${flags:-buffered}: $shared % of one in zones of the other"
        [ "$shared" -le 15 ]
        rm "$mnt/one" "$mnt/two"
    done
}

# Small files that are closed before they are committed lie together. (xfs/639)
case_small() {
    local file count
    mkdir "$mnt/small"
    for file in $(seq 100); do noise 8192 >"$mnt/small/$file"; done
    "$terrane" sync p
    count=$(zones_of "$mnt"/small/* | wc -l)
    say "    100 files of 8 KiB in $count zones"
    # At a zone's end they may go on in the next.
    [ "$count" -le 2 ]
}

# Files of other life times lie apart: three kinds, written in turn. (xfs/638)
case_hints() {
    local file kind shared
    [ "$zones" -ge "$streams_apart" ] || skip "$zones zones: streams share them below $streams_apart"
    for kind in short medium long; do
        mkdir "$mnt/$kind"
        setfattr -n user.terrane.write_hint -v "$kind" "$mnt/$kind"
    done
    for file in $(seq 100); do
        for kind in short medium long; do noise $((1 << 20)) >"$mnt/$kind/$file"; done
    done
    "$terrane" sync p
    for kind in short medium long; do zones_of "$mnt/$kind"/* | awk '$2 > 65536 { print $1 }' | sort >"$work/$kind"; done
    shared=$(sort "$work/short" "$work/medium" "$work/long" | uniq -d | wc -l)
    say "    zones: $(wc -l <"$work/short") of short, $(wc -l <"$work/medium") of medium, $(wc -l <"$work/long") of long, $shared shared"
    # One in ten runs, two in another two; 41 without hints.
    [ "$shared" -le 3 ]
}

# What eight writers were given before the file system was full is what `df` and `du` say, and no writer got more than was offered. (xfs/642)
case_df() {
    local offered used counted writer apart
    offered=$(available)
    for writer in $(seq 8); do
        # Told that the file system is full, or that is the failure.
        { dd if=/dev/urandom of="$mnt/writer$writer" bs=64K iflag=fullblock status=none 2>"$work/writer$writer" && echo unlimited >"$work/writer$writer"; } || true &
    done
    wait
    for writer in $(seq 8); do grep -q 'No space left' "$work/writer$writer" || { cat "$work/writer$writer"; return 1; }; done
    "$terrane" sync p
    used=$(df --output=used -B1 "$mnt" | tail -n 1)
    counted=$(du -s -B1 "$mnt" | cut -f 1)
    apart=$(((used - counted) * 1000 / offered))
    say "    offered $(mib "$offered"), df $(mib "$used"), du $(mib "$counted"): $((counted * 1000 / offered)) thousandths of what was offered"
    [ "${apart#-}" -le 10 ]
    [ $((counted * 1000 / offered)) -ge 970 ] && [ "$counted" -le "$offered" ]
    rm "$mnt"/writer*
    "$terrane" sync p
    [ $((($(available)) * 1000 / offered)) -ge 990 ]
}

# A program that makes a file shorter gets no ENOSPC, and does not wait behind writers. (xfs/646)
case_truncate() {
    local round rounds=4 filler began waited longest=0
    [ -z "$soak" ] || rounds=20
    # Most of it is full from the beginning.
    noise $((($(available) - (512 << 20)) & ~0xfffff)) >"$mnt/most"
    for round in $(seq "$rounds"); do
        noise $((128 << 20)) >"$mnt/kept"
        dd if=/dev/urandom of="$mnt/filler" bs=1M iflag=fullblock status=none 2>/dev/null &
        filler=$!
        # Until it is nearly there, so that it runs into the end while we truncate.
        while [ "$(available)" -gt $((16 << 20)) ] && kill -0 "$filler" 2>/dev/null; do sleep 0.05; done
        began=${EPOCHREALTIME/./}
        truncate -s 3275 "$mnt/kept"
        waited=$((${EPOCHREALTIME/./} - began))
        [ "$waited" -le "$longest" ] || longest=$waited
        kill "$filler" 2>/dev/null || true
        wait "$filler" 2>/dev/null || true
        [ "$(stat -c %s "$mnt/kept")" = 3275 ]
        rm "$mnt/filler" "$mnt/kept"
    done
    say "    $rounds times; the longest took $((longest / 1000)) ms"
}

# Eight that write in turns share zones, and half of them go; while something else is written again and again, the others are moved. They
# must not be scattered by that: each lies in hardly more zones than it would fill, and is right. In order, and at random. (xfs/643, xfs/644)
case_scatter() {
    local file how before after most=$((30 * (1 << 20) / zone_bytes + 5)) rest round rounds=3
    [ -z "$soak" ] || rounds=20
    interleave() { # how
        python3 - "$mnt" "$1" <<'EOT'
import os, random, sys
dir, how = sys.argv[1:]
turns = [(file, at) for at in range(480) for file in range(8)]
if how == "random":
    random.Random(1).shuffle(turns)
files = [os.open(f"{dir}/part{file}", os.O_WRONLY | os.O_CREAT) for file in range(8)]
for turn, (file, at) in enumerate(turns):
    os.pwrite(files[file], random.Random(file * 1000 + at).randbytes(65536), at << 16)
    # Txgs of a few MiB, as when another program commits.
    if turn % 64 == 63:
        os.fsync(files[file])
EOT
    }
    spread() { for file in 0 2 4 6; do zones_of "$mnt/part$file" | awk '$2 > 65536' | wc -l; done | sort -n | tail -n 1; }
    for how in order random; do
        interleave $how
        (cd "$mnt" && sha256sum part[0246]) >"$work/sums"
        rm "$mnt"/part[1357]
        "$terrane" sync p
        before=$(spread)
        rest=$(($(available) * 9 / 10 >> 20))
        for round in $(seq "$rounds"); do dd if=/dev/urandom of="$mnt/rest" bs=1M count="$rest" conv=notrunc,fsync iflag=fullblock status=none; done
        after=$(spread)
        say "    $how: in $before zones at the most, after $rounds times $rest MiB in $after"
        (cd "$mnt" && sha256sum --quiet -c "$work/sums")
        [ "$after" -le "$most" ] || [ "$after" -le "$before" ]
        rm "$mnt"/part* "$mnt/rest"
        "$terrane" sync p
    done
}

# What is known of space does not change by unmounting, open zones with removed files in them or not. (xfs/634)
case_remount() {
    local before after
    for file in 1 2 3 4; do noise $((3 << 20)) >"$mnt/$file"; done
    "$terrane" sync p
    rm "$mnt"/[13]
    "$terrane" sync p
    before=$(df --output=used,avail -B1 "$mnt" | tail -n 1)
    for _ in 1 2 3; do
        "$terrane" umount "$mnt"
        "$terrane" mount p "$mnt"
        after=$(df --output=used,avail -B1 "$mnt" | tail -n 1)
        say "    used and available: $before, after a mount $after"
        # Names and inodes may be written anew by the mount.
        awk -v slack=$((1 << 20)) '{ for (at = 1; at <= 2; at++) { apart = $at - $(at + 2); if (apart < -slack || apart > slack) exit 1 } }' <<<"$before $after"
    done
}

# Zones whose files are gone are emptied on the drive, and next to nothing is moved for it: blocks of metadata that lay between. (btrfs/237)
case_reset() {
    local file fresh full emptied moved
    empty_zones() { blkzone report "$drive" | grep -c '1(em)' || true; }
    fresh=$(empty_zones)
    for file in 1 2 3 4; do
        noise $((zone_bytes * 3 / 4)) >"$mnt/$file"
        "$terrane" sync p
    done
    full=$(empty_zones)
    rm "$mnt"/[1-4]
    # The txgs that may still be rolled back to must be older first.
    for _ in $(seq 8); do touch "$mnt/later"; "$terrane" sync p; done
    emptied=$(empty_zones)
    moved=$("$terrane" metrics p | awk '/^terrane_collected_bytes_total/ { sum += $NF } END { print sum + 0 }')
    say "    empty zones: $fresh, $full with four files of three quarters of a zone, $emptied without them; $moved bytes moved"
    # The last of them may be open still.
    [ "$full" -le $((fresh - 3)) ] && [ "$emptied" -ge $((full + 2)) ] && [ "$moved" -le $((zone_bytes / 32)) ]
}

fresh() {
    rm -f "$TERRANE_STATE_DIR/pools"
    "$terrane" pool create p "$drive" --force -o compression=off >/dev/null
    "$terrane" mount p "$mnt"
}

all=(case_alone case_small case_apart case_hints case_slots case_df case_truncate case_scatter case_remount case_reset)
[ $# -gt 0 ] && all=("$@")
passed=0 skipped=0 failed=()
for check in "${all[@]}"; do
    begin=$SECONDS status=0
    printf '%-16s' "$check"
    # A shell of its own that stops at the first thing that goes wrong; not in an `if`, where bash would go on after errors.
    (set -e; fresh; "$check"; "$terrane" umount "$mnt"; "$terrane" check p) >"$work/log" 2>&1 & wait $! || status=$?
    case $status in
        0) passed=$((passed + 1)); printf 'ok    %4d s\n' $((SECONDS - begin)); grep '^    ' "$work/log" || true ;;
        77) skipped=$((skipped + 1)); printf 'SKIPPED\n'; loud "$check $(grep '^    skipped: ' "$work/log" | sed 's/^ *//')" ;;
        *) failed+=("$check"); printf 'FAILED after %d s\n' $((SECONDS - begin)); tail -n 40 "$work/log" | sed 's/^/    /' ;;
    esac
    unmount "$mnt"
done
echo "zoned-cases: $passed passed, ${#failed[@]} failed, $skipped skipped${failed:+ (${failed[*]})}"
[ ${#failed[@]} = 0 ]
