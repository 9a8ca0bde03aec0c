#!/usr/bin/env bash
# Pools in object stores: a part of the mounted suite, and machines that take a pool from each other. The store is versitygw, a server
# that speaks S3, on this machine. The same checks run on a directory (file://), and some with 20 ms added to each request.
#
#   scripts/buckets.sh                 as in `make test`
#   scripts/buckets.sh --soak          the whole mounted suite
#   scripts/buckets.sh check_take_over only these, on both
set -euo pipefail
. "$(dirname "$0")/pool.sh"
in_own_namespace "$0" "$@"

if [ -z "${TERRANE_BUCKET_URL:-}" ]; then
    soak=
    [ "${1:-}" = --soak ] && { soak=1; shift; }
    can_mount || { loud "SKIPPED: buckets need /dev/fuse"; echo "buckets: 0 passed, 0 failed, 1 skipped"; exit 0; }
    "$top/scripts/setup.sh" buckets
    gateway=${CARGO_TARGET_DIR:-$top/target}/tools/bin/versitygw
    store=$(work_dir) passed=0 failed=0 skipped=0 log=$store/log
    trap 'for pid in $(cat "$store/pid" "$store/proxy" 2>/dev/null); do kill "$pid" 2>/dev/null || true; done; rm -rf "$store"' EXIT
    count() { # log
        local sums
        grep -qE '^(buckets|mounted): ' "$1" || { failed=$((failed + 1)); return; }
        sums=$(awk '/^(buckets|mounted):/ { p += $2; f += $4; s += $6 } END { print p + 0, f + 0, s + 0 }' "$1")
        read -r p f s <<<"$sums"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    }
    on() { # URL, checks of this script...
        local url=$1
        shift
        say "-- on ${url%%:*}"
        TERRANE_BUCKET_URL=$url "$0" "$@" 2>&1 | tee "$log" || true
        count "$log"
    }
    mkdir -p "$store/dir" "$store/objects/pools" "$store/home/.aws"
    # Ours alone, whatever keys this machine has.
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE
    on "file://$store/dir/p" "$@"
    if [ -x "$gateway" ]; then
        port=$((20000 + RANDOM % 10000))
        # Checks end it and begin it again by this.
        export GATEWAY_PID=$store/pid GATEWAY=$store/gateway
        cat >"$GATEWAY" <<EOT
ROOT_ACCESS_KEY=test ROOT_SECRET_KEY=secret-of-a-test "$gateway" --quiet --port 127.0.0.1:$port posix "$store/objects" >>"$store/gateway.log" 2>&1 &
echo \$! >"$GATEWAY_PID"
for _ in \$(seq 100); do (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.1; done
EOT
        bash "$GATEWAY"
        printf '[default]\naws_access_key_id = test\naws_secret_access_key = secret-of-a-test\n' >"$store/home/.aws/credentials"
        export AWS_SHARED_CREDENTIALS_FILE=$store/home/.aws/credentials AWS_ENDPOINT_URL=http://127.0.0.1:$port
        on s3://pools/p "$@"
        if [ $# = 0 ]; then
            say "-- on s3, each request 20 ms later"
            python3 "$top/scripts/delay_proxy.py" $((port + 1)) "$port" 20 &
            echo $! >"$store/proxy"
            for _ in $(seq 100); do (: >"/dev/tcp/127.0.0.1/$((port + 1))") 2>/dev/null && break; sleep 0.1; done
            late=(check_two_machines check_take_over check_killed_server)
            [ -z "$soak" ] || late=()
            AWS_ENDPOINT_URL=http://127.0.0.1:$((port + 1)) on s3://pools/late "${late[@]}"
            say "-- mounted suite on s3"
            part=(check_tree check_git check_sqlite check_mapped check_locks)
            [ -z "$soak" ] || part=()
            TERRANE_POOL_DEVICE=s3://pools/suite "$top/scripts/mounted.sh" "${part[@]}" 2>&1 | tee "$log" || true
            count "$log"
        fi
    else
        loud "SKIPPED: no versitygw: nothing was tried on S3"
        skipped=$((skipped + 1))
    fi
    echo "buckets: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
fi

TERRANE_POOL_DEVICE=$TERRANE_BUCKET_URL
. "$top/scripts/checks.sh"
tree=${TERRANE_TREE:-/usr/include/linux}

# Another machine, as far as the pool can tell: a state directory and a mount point of its own.
other() { TERRANE_STATE_DIR=$work/other "$terrane" "$@"; }
other_mnt=$work/other-mnt

# What one machine wrote another one finds, and the other way round.
check_two_machines() {
    cp -a "$tree" "$mnt/tree"
    "$terrane" umount "$mnt"
    "$terrane" pool export p
    mkdir -p "$work/other" "$other_mnt"
    other mount "$TERRANE_BUCKET_URL" "$other_mnt"
    diff -r --no-dereference "$tree" "$other_mnt/tree"
    rm -r "$other_mnt/tree"
    echo back >"$other_mnt/file"
    other umount "$other_mnt"
    "$terrane" mount "$TERRANE_BUCKET_URL" "$mnt"
    [ "$(cat "$mnt/file")" = back ] && [ ! -e "$mnt/tree" ]
}

# A second machine takes the pool from one that has it mounted. What that had synced is there, and it acknowledges nothing any more.
check_take_over() {
    local i last=0
    for i in $(seq 20); do
        head -c 20000 /dev/urandom >"$work/bytes"
        dd if="$work/bytes" of="$mnt/synced-$i" bs=20000 conv=fsync status=none
        cp "$work/bytes" "$work/expected-$i"
    done
    mkdir -p "$work/other" "$other_mnt"
    other mount "$TERRANE_BUCKET_URL" "$other_mnt"
    for i in $(seq 20); do cmp "$work/expected-$i" "$other_mnt/synced-$i"; done
    # The loser must not say yes to any of these.
    for i in $(seq 5); do
        ! dd if="$work/bytes" of="$mnt/late-$i" bs=20000 conv=fsync status=none 2>/dev/null || { say "    a fenced machine acknowledged"; return 1; }
    done
    grep -q fenced "$TERRANE_STATE_DIR"/p.log || { say "    its log does not say why"; return 1; }
    echo on >"$other_mnt/goes-on"
    # As one unmounts what has failed.
    unmount "$mnt"
    other umount "$other_mnt"
    other check "$TERRANE_BUCKET_URL"
    "$terrane" mount "$TERRANE_BUCKET_URL" "$mnt"
    [ "$(cat "$mnt/goes-on")" = on ] && [ ! -e "$mnt/late-1" ]
}

# A server that is killed loses nothing, and its successor is not taken for another machine.
check_killed_server() {
    local i
    for i in $(seq 6); do
        head -c 100000 /dev/urandom >"$work/expected-$i"
        cp "$work/expected-$i" "$mnt/file-$i"
        kill -9 "$(server)"
        cmp "$work/expected-$i" "$mnt/file-$i"
    done
}

# Files come and go several times over: their objects do, too.
check_space() {
    local round
    for round in 1 2 3; do
        head -c 48M /dev/urandom >"$mnt/big"
        "$terrane" sync p
        rm "$mnt/big"
    done
    "$terrane" sync p
    local used
    used=$("$terrane" pool list -H -p -o used p)
    [ "$used" -lt $((1 << 20)) ] || { say "    $used bytes used by nothing"; return 1; }
}

# The store is away for a while: callers wait, the status says why, and nothing is lost.
check_store_away() {
    [ -n "${GATEWAY:-}" ] || skip 'no server to end'
    local tries writer
    head -c 3M /dev/urandom >"$work/expected"
    kill "$(cat "$GATEWAY_PID")"
    dd if="$work/expected" of="$mnt/file" bs=1M conv=fsync status=none &
    writer=$!
    ends_with_check "$writer"
    for tries in $(seq 100); do
        "$terrane" pool status p | grep -q 'trying again' && break
        sleep 0.1
    done
    "$terrane" pool status p | grep 'trying again' || { say "    the status does not say why"; return 1; }
    kill -0 "$writer" || { say "    the writer did not wait"; return 1; }
    bash "$GATEWAY"
    wait "$writer"
    "$terrane" pool status p | grep -q 'state: healthy'
    kill -9 "$(server)"
    cmp "$work/expected" "$mnt/file"
}

# A pool is unmounted while its store is away: that ends, says that not all is committed, and what was synced is there afterwards.
check_umount_away() {
    [ -n "${GATEWAY:-}" ] || skip 'no server to end'
    local pid said began
    cp -a "$tree" "$mnt/tree"
    "$terrane" sync p
    head -c 3M /dev/urandom >"$work/expected"
    dd if="$work/expected" of="$mnt/synced" bs=1M conv=fsync status=none
    pid=$(server)
    # So that the commit has to read.
    "$terrane" umount "$mnt"
    "$terrane" mount p "$mnt"
    pid=$(server)
    dd if="$work/expected" of="$mnt/again" bs=1M conv=fsync status=none
    kill "$(cat "$GATEWAY_PID")"
    rm -r "$mnt/tree" 2>/dev/null || true
    echo lost >"$mnt/not-synced" || true
    began=$SECONDS
    said=$("$terrane" umount "$mnt" 2>&1) && said="nothing lost: $said"
    # Before it is judged: the next check needs it.
    bash "$GATEWAY"
    [ $((SECONDS - began)) -lt 90 ] || { say "    it took $((SECONDS - began)) s"; return 1; }
    grep -q 'not all is committed' <<<"$said" || { say "    said: $said"; return 1; }
    ! kill -0 "$pid" 2>/dev/null || { say "    the server goes on"; return 1; }
    "$terrane" mount p "$mnt"
    cmp "$work/expected" "$mnt/synced"
    cmp "$work/expected" "$mnt/again"
}

# A read-only mount and a check change nothing.
check_read_only() {
    cp -a "$tree" "$mnt/tree"
    "$terrane" umount "$mnt"
    "$terrane" mount p "$mnt" -o ro
    diff -r --no-dereference "$tree" "$mnt/tree"
    ! touch "$mnt/file" 2>/dev/null
    "$terrane" umount "$mnt"
    "$terrane" check p
    "$terrane" mount p "$mnt"
}

# Other machines that follow a writer: what it commits they see soon, and never a wrong byte, while GC deletes what it replaced.
check_follow() {
    local i readers=() seconds=${TERRANE_FOLLOW_SECONDS:-12} count=${TERRANE_FOLLOWERS:-3} open writer
    follower() { TERRANE_STATE_DIR=$work/follower-$1 "$terrane" "${@:2}"; }
    # What is deleted stays for a moment only, so that readers are overtaken.
    "$terrane" fs set retain=2s p
    head -c 300000 /dev/urandom >"$work/one"
    head -c 300000 /dev/urandom >"$work/two"
    cp "$work/one" "$mnt/file"
    mkdir "$mnt/dir"
    touch "$mnt/dir/before"
    echo 0 >"$mnt/version"
    "$terrane" sync p
    for i in $(seq "$count"); do
        mkdir -p "$work/follower-$i" "$work/mnt-$i"
        follower "$i" mount "$TERRANE_BUCKET_URL" "$work/mnt-$i" -o follow
        cmp "$work/one" "$work/mnt-$i/file"
    done
    ! touch "$work/mnt-1/no" 2>/dev/null || { say "    a follower can write"; return 1; }
    exec {open}<"$work/mnt-1/file"
    # In place, of the same size; a new name, and one less.
    dd if="$work/two" of="$mnt/file" bs=300000 conv=notrunc status=none
    mv "$mnt/dir/before" "$mnt/dir/after"
    "$terrane" sync p
    for i in $(seq 100); do cmp -s "$work/two" "$work/mnt-1/file" && break; sleep 0.1; done
    cmp "$work/two" "$work/mnt-1/file"
    cmp "$work/two" <(cat <&"$open")
    [ "$(ls "$work/mnt-1/dir")" = after ]
    exec {open}<&-
    python3 "$top/scripts/followers.py" write "$mnt" "$seconds" >"$work/written" &
    writer=$!
    ends_with_check "$writer"
    for i in $(seq "$count"); do
        python3 "$top/scripts/followers.py" read "$work/mnt-$i" "$seconds" >"$work/read-$i" 2>&1 &
        readers+=($!)
    done
    ends_with_check "${readers[@]}"
    for i in $(seq "$count"); do
        wait "${readers[$((i - 1))]}" || { cat "$work/read-$i"; return 1; }
    done
    wait "$writer"
    say "    $(cat "$work/written") versions written; $(cat "$work/read-1")"
    # The server of a follower shows the state that it follows, and what it asked for.
    follower 1 pool iostat -r p | grep -q PUT
    follower 1 pool status p >/dev/null
    for i in $(seq "$count"); do follower "$i" umount "$work/mnt-$i"; done
    "$terrane" umount "$mnt"
    "$terrane" check p
    "$terrane" mount p "$mnt"
}

all=(check_two_machines check_take_over check_killed_server check_space check_read_only check_follow)
# A directory does not go away.
[ -z "${GATEWAY:-}" ] || all+=(check_store_away check_umount_away)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
