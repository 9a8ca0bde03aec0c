#!/usr/bin/env bash
# The mounted suite: programs that people use, on a real mount.
#
#   scripts/mounted.sh              as in `make test`
#   scripts/mounted.sh --soak       more of it: 50 killed daemons, a pool filled and emptied 50 times, 1 GB written over itself
#   scripts/mounted.sh check_git    only these
#
# checks.sh has what runs them.
set -euo pipefail
. "$(dirname "$0")/checks.sh"

kills=5 fills=2 same_mib=64
[ "${1:-}" = --soak ] && { kills=50 fills=50 same_mib=1000; shift; }
# A tree with links, odd names and many small files.
tree=${TERRANE_TREE:-/usr/include}

check_tree() {
    cp -a "$tree" "$mnt/tree"
    diff -r --no-dereference "$tree" "$mnt/tree"
    "$terrane" umount "$mnt"
    "$terrane" check p >/dev/null
    "$terrane" mount p "$mnt"
    diff -r --no-dereference "$tree" "$mnt/tree"
}

check_git() {
    local origin=$top
    if ! git -C "$origin" rev-parse --git-dir >/dev/null 2>&1; then
        origin=$work/origin
        git init -q "$origin"
        cp -r "$top/scripts" "$origin/"
        git -C "$origin" add . && git -C "$origin" -c user.name=t -c user.email=t@t commit -qm scripts
    fi
    git clone -q --no-local "$origin" "$mnt/clone"
    git -C "$mnt/clone" fsck --full --no-progress >/dev/null 2>"$work/fsck" || { cat "$work/fsck"; return 1; }
    [ -z "$(git -C "$mnt/clone" status --porcelain)" ]
    local git=(git -C "$mnt/clone" -c user.name=t -c user.email=t@t)
    "${git[@]}" checkout -q -b side
    cp -r "$mnt/clone/scripts" "$mnt/clone/copied"
    "${git[@]}" add copied && "${git[@]}" commit -qm copied
    "${git[@]}" checkout -q - && [ ! -e "$mnt/clone/copied" ]
    "${git[@]}" merge -q --no-edit --no-ff side && diff -r "$mnt/clone/scripts" "$mnt/clone/copied"
    git -C "$mnt/clone" gc -q
    git -C "$mnt/clone" fsck --full --no-progress >/dev/null
}

check_build() {
    local dir=$mnt/project
    c_project "$dir"
    make -s -j2 -C "$dir"
    "$dir/out/program"
    touch "$dir/src/part7.c"
    # Nothing but what depends on the touched file is built again: times are right.
    [ "$(make -C "$dir" | grep -c -- '-c -o')" = 1 ]
    make -s -C "$dir" && "$dir/out/program"
}

check_sqlite() {
    {
        echo 'pragma journal_mode = delete; pragma synchronous = full; create table t (id integer primary key, v text);'
        seq -f "insert into t values (%.0f, hex(randomblob(40)));" 1 2000
        echo 'pragma journal_mode = wal;'
        seq -f "insert into t values (%.0f, hex(randomblob(40)));" 2001 10000
    } >"$work/sql"
    sqlite3 "$mnt/db" <"$work/sql" >/dev/null
    [ "$(sqlite3 "$mnt/db" 'select count(*), sum(id) from t')" = '10000|50005000' ]
    [ "$(sqlite3 "$mnt/db" 'pragma integrity_check')" = ok ]
}

check_space() {
    local before full after try
    need_image
    "$terrane" sync p
    before=$(stored_bytes "$work/pool.img")
    mkdir "$mnt/d"
    for try in $(seq 8); do head -c 32M /dev/urandom >"$mnt/d/$try"; done
    cp -a "$tree" "$mnt/d/tree"
    "$terrane" sync p
    full=$(stored_bytes "$work/pool.img")
    # What is deleted counts as free before any commit.
    local avail
    avail=$(df --output=avail -BM "$mnt" | tail -n 1 | tr -d ' M')
    rm "$mnt/d/1"
    for try in $(seq 10); do
        [ "$(df --output=avail -BM "$mnt" | tail -n 1 | tr -d ' M')" -ge $((avail + 30)) ] && break
        [ "$try" != 10 ] || { say "    df does not show what was deleted"; return 1; }
        sleep 0.05
    done
    rm -rf "$mnt/d"
    for try in $(seq 60); do
        "$terrane" sync p
        after=$(stored_bytes "$work/pool.img")
        [ $((after - before)) -lt $(((full - before) / 4)) ] && break
        sleep 0.5
    done
    say "    backing file: $(mib "$before"), full $(mib "$full"), after rm $(mib "$after")"
    [ $((full - before)) -gt $((256 << 20)) ] && [ $((after - before)) -lt $(((full - before) / 4)) ]
}

# Filled to the end and emptied, again and again: no write is refused before what the empty pool offered is in use, and the backing file gets
# smaller each time.
check_emptied() {
    local offered empty full left used least=100 most=0 round file try
    need_image
    "$terrane" umount "$mnt"
    fresh_pool 512M -o compression=off
    "$terrane" sync p
    offered=$(df --output=avail -B1 "$mnt" | tail -n 1)
    empty=$(stored_bytes "$work/pool.img")
    for round in $(seq "$fills"); do
        # Large files in one round, smaller ones in the next.
        for file in $(seq 100000); do
            # Refused may be the file itself, which the shell makes: that is written down only where errors go already.
            head -c $((round % 2 ? 37 << 20 : RANDOM * 20)) /dev/urandom 2>"$work/refused" >"$mnt/$file" || break
        done
        grep -q 'No space left' "$work/refused" || { cat "$work/refused"; return 1; }
        "$terrane" sync p
        used=$(($(df --output=used -B1 "$mnt" | tail -n 1) * 100 / offered))
        [ "$used" -ge "$least" ] || least=$used
        full=$(stored_bytes "$work/pool.img")
        find "$mnt" -type f -delete
        for try in $(seq 60); do
            "$terrane" sync p
            left=$(stored_bytes "$work/pool.img")
            [ $((left - empty)) -lt $(((full - empty) / 8)) ] && break
            : >"$mnt/touched"
            sleep 0.1
        done
        left=$(((left - empty) * 100 / (full - empty)))
        [ "$left" -le "$most" ] || most=$left
        [ "$used" -ge 98 ] && [ "$left" -lt 13 ] || { say "    round $round: $used % were in use at the end, $left % of the file left"; return 1; }
    done
    say "    $fills times: at least $least % of what was offered in use, at most $most % of the backing file left"
}

# What a program asks for and does not get must be said in the right words.
check_unsupported() {
    local answer
    : >"$mnt/f"
    answer=$(cp --reflink=always "$mnt/f" "$mnt/g" 2>&1) && return 1
    cp --reflink=auto "$mnt/f" "$mnt/h"
    head -c 1M /dev/urandom >"$mnt/f"
    answer=$(fallocate --collapse-range -o 0 -l 4096 "$mnt/f" 2>&1) && return 1
    true
}

# What `du` shows is what is stored: nothing for holes and zeros, less than the length for what compresses.
check_blocks() {
    head -c 8M /dev/zero >"$mnt/zeros"
    head -c 8M < <(yes terrane) >"$mnt/text"
    head -c 8M /dev/urandom >"$mnt/noise"
    truncate -s 1G "$mnt/hole"
    "$terrane" sync p
    # The kernel remembers attributes; a new mount asks again.
    "$terrane" umount "$mnt" && "$terrane" mount p "$mnt"
    [ "$(stat -c %b "$mnt/zeros")" = 0 ] && [ "$(stat -c %b "$mnt/hole")" = 0 ] || return 1
    [ "$(stat -c %b "$mnt/text")" -lt 4096 ] && [ "$(stat -c %b "$mnt/noise")" -ge 16384 ] || return 1
    # What fits its pointer is no hole: a program that looks at blocks alone must not lose it.
    printf 'a few bytes' >"$mnt/tiny"
    "$terrane" sync p && "$terrane" umount "$mnt" && "$terrane" mount p "$mnt"
    [ "$(stat -c %b "$mnt/tiny")" = 1 ] || return 1
    [ "$(tar --sparse -C "$mnt" -cf - tiny | tar -xOf - tiny)" = 'a few bytes' ]
}

# What programs stored through a mapping is copied and stored anew as it is, while the mapping stands; holes stay holes.
check_mapped() {
    command -v python3 >/dev/null || skip 'no python3'
    local words sum
    for words in '' direct_io uring; do
        mount_again $words
        rm -rf "${mnt:?}"/*
        # A copy whose source is one hole but for what was stored.
        T=$terrane M=$mnt timeout 60 python3 - <<'EOT' || return 1
import mmap, os, subprocess
d = os.environ['M']
def run(*words): subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
f = os.open(d + '/f', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 3 << 20)
m = mmap.mmap(f, 3 << 20)
for n, at in enumerate([500000, 5, 2 << 20, 2900000]):
    m[at:at + 3] = b'abc'
    run('cp', d + '/f', d + '/g')
    run('tar', '-C', d, '--sparse', '-cf', d + '/tar', 'f')
    run('mkdir', d + '/x%d' % n)
    run('tar', '-C', d + '/x%d' % n, '-xf', d + '/tar')
    expected = m[:]
    assert open(d + '/g', 'rb').read() == expected, ('cp', at)
    assert open(d + '/x%d/f' % n, 'rb').read() == expected, ('tar', at)
m[7:10] = b'XYZ'
run(os.environ['T'], 'fs', 'rewrite', '--compression=zstd-9', d + '/f')
# `terrane sync` has the kernel write back first, if it has not by itself.
def writes():
    metrics = subprocess.check_output([os.environ['T'], 'metrics', 'p'], text=True).splitlines()
    return sum(int(l.split()[-1]) for l in metrics if 'request_seconds_count' in l and 'operation="write"' in l)
before = writes()
m[2000000:2000003] = b'XYZ'
run(os.environ['T'], 'sync', 'p')
assert writes() > before, 'synced'
expected = m[:]
m.close()
os.close(f)
assert open(d + '/f', 'rb').read() == expected, 'rewritten'
EOT
        sum=$(sha256sum <"$mnt/f")
        mount_again $words
        [ "$(sha256sum <"$mnt/f")" = "$sum" ] || { say "    $words: another file after a new mount"; return 1; }
        truncate -s 1G "$mnt/hole"
        printf x | dd of="$mnt/hole" bs=1 seek=700M conv=notrunc status=none
        cp "$mnt/hole" "$work/copy"
        [ "$(du -k "$work/copy" | cut -f 1)" -lt 1024 ] && [ "$(stat -c %s "$work/copy")" = $((1 << 30)) ] || { say "    $words: a sparse copy of $(du -k "$work/copy")"; return 1; }
        [ "$(tail -c +$(((700 << 20) + 1)) "$work/copy" | head -c 1)" = x ]
    done
}

# A file that is written over itself takes nothing, by the level that made it and by another one. How much was written is shown.
check_nopwrite() {
    "$terrane" fs set compression=zstd-3 p
    head -c "${same_mib}M" < <(while cat /usr/bin/* /usr/lib/*/*.so* 2>/dev/null && head -c 16M /dev/urandom; do :; done) >"$work/data"
    cp "$work/data" "$mnt/data"
    "$terrane" sync p
    local level before after modified
    used() { "$terrane" fs get -H -p -o value used p; }
    # What was used, and what devices were given in all and for the contents of files.
    state() {
        printf '%s ' "$(used)"
        "$terrane" metrics p | awk '/^terrane_device_written_bytes_total[{ ]/ { all += $NF } /^terrane_life_device_bytes_total.*"data"/ { data = $NF } END { printf "%.0f %.0f\n", all, data }'
    }
    for level in zstd-3 zstd-9; do
        "$terrane" fs set "compression=$level" p
        modified=$(stat -c %y%z "$mnt/data")
        read -ra before < <(state)
        dd if="$work/data" of="$mnt/data" bs=1M conv=notrunc,fsync status=none
        # An fsync may be served by the intent log.
        "$terrane" sync p
        read -ra after < <(state)
        say "    $same_mib MiB again by $level: used $((after[0] - before[0])) bytes more, devices were given $((after[1] - before[1])) bytes, for records $((after[2] - before[2]))"
        # A record that did not shrink by one level may by the other, and is then stored anew.
        [ $((after[0] - before[0])) -lt 1000000 ] && [ $((after[2] - before[2])) -lt 1000000 ] || return 1
        [ "$(stat -c %y%z "$mnt/data")" != "$modified" ] || return 1
    done
    # What differs is stored, and nothing else.
    printf x | dd of="$mnt/data" bs=1 seek=3000000 conv=notrunc,fsync status=none
    printf x | dd of="$work/data" bs=1 seek=3000000 conv=notrunc status=none
    "$terrane" sync p
    read -ra after < <(state)
    [ $((after[2] - before[2])) -gt 0 ] && [ $((after[2] - before[2])) -lt 200000 ] || return 1
    mount_again && cmp "$work/data" "$mnt/data"
}

check_locks() {
    : >"$mnt/lock"
    flock "$mnt/lock" -c "! flock -n '$mnt/lock' -c true"
    flock -n "$mnt/lock" -c true
}

# One damaged byte of a file: its reader gets EIO, all other programs go on, `check` names it.
check_damage() {
    local mark=terrane-damage-$RANDOM-$RANDOM at
    need_image
    { head -c 60000 /dev/urandom; printf %s "$mark"; head -c 60000 /dev/urandom; } >"$mnt/damaged"
    head -c 120000 /dev/urandom >"$mnt/whole"
    cp "$mnt/whole" "$work/whole"
    "$terrane" umount "$mnt"
    at=$(head -c 1G "$work/pool.img" | tr "\0" "\n" | grep -abo "$mark" | head -n 1 | cut -d: -f1)
    [ -n "$at" ] || { say "    the block is not where it should be"; return 1; }
    printf T | dd of="$work/pool.img" bs=1 seek="$at" conv=notrunc status=none
    "$terrane" check p >"$work/found" 2>&1 && { say "    check found nothing"; return 1; }
    grep -q 'checksum' "$work/found" || { cat "$work/found"; return 1; }
    "$terrane" mount p "$mnt"
    cat "$mnt/damaged" >/dev/null 2>"$work/error" && { say "    the damaged file was read"; return 1; }
    grep -q 'Input/output error' "$work/error" || { cat "$work/error"; return 1; }
    cmp "$mnt/whole" "$work/whole"
    rm "$mnt/damaged"
    echo more >"$mnt/more"
}

# A check whose caller is stopped holds zones, and its server waits for the caller: no writer is refused for that.
check_stopped_check() {
    local file checking=() size moment
    need_image
    "$terrane" umount "$mnt"
    fresh_pool 400M -o compression=off
    size=$(df --output=avail -B1M "$mnt" | tail -n 1)
    for file in $(seq $((size * 9 / 10 / 8))); do head -c 8M /dev/urandom >"$mnt/$file"; done
    "$terrane" sync p
    # One of them is stopped in the middle.
    for moment in 0.01 0.02 0.03 0.05 0.08; do
        "$terrane" check p >"$work/checked.$moment" 2>&1 &
        checking+=($!)
        ends_with_check $!
        sleep "$moment"
        kill -STOP $!
    done
    for file in $(seq $((size * 9 / 10 / 8))); do
        head -c 8M /dev/urandom | dd of="$mnt/$file" bs=1M iflag=fullblock conv=notrunc status=none || { say "    refused at $file"; return 1; }
    done
    "$terrane" sync p
    # It must have been in the way for this to say anything; a check that was over before it was stopped was not.
    grep -h 'long readers' "$TERRANE_STATE_DIR"/*.log || say "    the check held nothing that was needed"
    kill -CONT "${checking[@]}"
    wait "${checking[@]}"
    grep -q 'nothing found' "$work"/checked.0.01
}

# Each way to end a mount leaves a clean, committed pool.
check_ends() {
    local how
    "$terrane" umount "$mnt"
    for how in TERM INT umount fusermount; do
        mount_in_front
        echo "$how" >"$mnt/last"
        case $how in
            umount) umount "$mnt" ;;
            fusermount) fusermount3 -u "$mnt" ;;
            *) kill "-$how" "$daemon" ;;
        esac
        wait "$daemon" || { say "    $how: the daemon ended with $?"; return 1; }
        is_mounted "$mnt" && return 1
        "$terrane" check p >/dev/null
        "$terrane" mount p "$mnt"
        [ "$(cat "$mnt/last")" = "$how" ] || return 1
        "$terrane" umount "$mnt"
    done
    "$terrane" mount p "$mnt"
}

# Files of random content, each fsync'ed, then written down outside with its sum; beside it a load that is never synced.
writer() {
    local n=0 name
    while :; do
        n=$((n + 1))
        name=w$1-$n
        head -c $((RANDOM % 70000 + 1)) /dev/urandom >"$work/$1.bytes"
        dd if="$work/$1.bytes" of="$mnt/kept/$name" bs=64K conv=fsync status=none 2>/dev/null || return 0
        printf '%s  %s\n' "$(sha256sum <"$work/$1.bytes" | cut -d' ' -f1)" "$name" >>"$work/manifest.$1"
    done
}

unsynced_load() {
    while :; do
        cp -a "$tree/linux" "$mnt/load" 2>/dev/null || cp -a "$tree" "$mnt/load" 2>/dev/null || return 0
        mv "$mnt/load" "$mnt/gone" 2>/dev/null || return 0
        rm -rf "$mnt/gone" 2>/dev/null || return 0
        [ -d "$mnt/kept" ] || return 0
    done
}

check_kill() {
    local round jobs pid tries promised=0
    mkdir "$mnt/kept"
    "$terrane" umount "$mnt"
    : >"$work/manifest.1"
    : >"$work/manifest.2"
    for round in $(seq "$kills"); do
        mount_in_front
        jobs=()
        # Process groups of their own: what a job has started must end with it, or it would go on in the next mount.
        set -m
        writer "1" & jobs+=($!)
        writer "2" & jobs+=($!)
        unsynced_load & jobs+=($!)
        set +m
        ends_with_check "${jobs[@]/#/-}"
        sleep "$((RANDOM % 3 + 1)).$((RANDOM % 10))"
        # A round in which nothing was promised shows nothing.
        for tries in $(seq 600); do [ ! -s "$work/manifest.1" ] || break; sleep 0.1; done
        kill -9 "$daemon"
        wait "$daemon" 2>/dev/null || true
        for pid in "${jobs[@]}"; do kill -9 -- "-$pid" 2>/dev/null || true; done
        unmount "$mnt"
        for pid in "${jobs[@]}"; do wait "$pid" 2>/dev/null || true; done
        # A name whose sum was being written when the writer was killed was not promised yet.
        "$terrane" check p >"$work/check.log" 2>&1 || { say "    round $round:"; cat "$work/check.log"; return 1; }
        mount_in_front
        cat "$work/manifest.1" "$work/manifest.2" | grep -E '^[0-9a-f]{64}  w[12]-[0-9]+$' >"$work/manifest"
        promised=$((promised + $(wc -l <"$work/manifest")))
        (cd "$mnt/kept" && sha256sum --quiet -c "$work/manifest") || { say "    round $round: a promised file is not there"; return 1; }
        rm -rf "$mnt/kept" "$mnt/load" "$mnt/gone" || { say "    round $round:"; find "$mnt/load" "$mnt/gone"; pgrep -ax cp; return 1; }
        mkdir "$mnt/kept"
        : >"$work/manifest.1"
        : >"$work/manifest.2"
        "$terrane" umount "$mnt"
        wait "$daemon" || true
    done
    say "    $kills times killed, $promised files promised and found"
    "$terrane" mount p "$mnt"
}

all=(check_tree check_git check_build check_sqlite check_space check_emptied check_stopped_check check_unsupported check_blocks check_mapped check_nopwrite check_locks check_damage check_ends check_kill)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
