#!/usr/bin/env bash
# Servers are killed while programs work. With the server alone, programs go on as if nothing had happened. With its supervisor too, as
# by a power cut, databases recover, and have all that they said was committed.
#
#   scripts/kills.sh                      as in `make test`
#   scripts/kills.sh --soak               ten minutes, and a hundred power cuts
#   scripts/kills.sh check_databases      only this
#
# TERRANE_KILL_SECONDS and TERRANE_KILL_ROUNDS set other numbers. checks.sh has what runs them.
set -euo pipefail
. "$(dirname "$0")/checks.sh"
. "$top/scripts/postgres.sh"

seconds=20 rounds=2
[ "${1:-}" = --soak ] && { seconds=600 rounds=100; shift; }
seconds=${TERRANE_KILL_SECONDS:-$seconds} rounds=${TERRANE_KILL_ROUNDS:-$rounds}
tree=${TERRANE_TREE:-/usr/include/linux}
# Suites that change users must reach the mount.
chmod 755 "$work"

# Calls it until $work/enough is there. A call that fails ends all, and what it said is kept.
again() { # name, command...
    local name=$1 calls=0
    shift
    while [ ! -e "$work/enough" ]; do
        "$@" >"$work/said.$name" 2>&1 || {
            { echo "$name, after $calls calls that succeeded:"; tail -n 20 "$work/said.$name"; } >"$work/failed.$name"
            touch "$work/enough"
            return 1
        }
        calls=$((calls + 1))
        echo "$calls" >"$work/calls.$name"
    done
}

copy_tree() { rm -rf "$mnt/copy" && cp -a "$mnt/tree" "$mnt/copy" && diff -r --no-dereference "$tree" "$mnt/copy"; }
build_program() { rm -rf "$mnt/project/out" && make -s -j2 -C "$mnt/project" && "$mnt/project/out/program"; }
# Ends with 2 if a client saw an error.
run_pgbench() { pg pgbench -n -c 4 -j 2 -T 5; }
fsx_seed=0
run_fsx() {
    fsx_seed=$((fsx_seed + 1))
    fsx -q -q -N 4000 -S $(($(seed_base) + fsx_seed)) -f "$work/fsx.toml" -P "$work" "$mnt/fsx" && sha256sum "$mnt/fsx" >"$work/fsx.sum"
}
commits=0
commit_change() {
    local file git=(git -C "$mnt/repo" -c user.name=t -c user.email=t@example.com -c core.fsync=all)
    for file in 1 2 3; do seq "$RANDOM" >"$mnt/repo/$file" || return 1; done
    "${git[@]}" add -A && "${git[@]}" commit -q -m "change $commits" || return 1
    commits=$((commits + 1))
    [ "$("${git[@]}" rev-list --count HEAD)" = "$commits" ] || { echo "there are not $commits commits"; return 1; }
    [ $((commits % 20)) != 0 ] || { "${git[@]}" fsck --full --strict && "${git[@]}" gc -q; }
}

contents_are_right() {
    diff -r --no-dereference "$tree" "$mnt/tree" && "$mnt/project/out/program" && sha256sum --quiet -c "$work/fsx.sum" || return 1
    git -C "$mnt/repo" fsck --full --strict --no-dangling && [ -z "$(git -C "$mnt/repo" status --porcelain)" ] || return 1
    pg_start && pg_books_balance && pg_indexes_agree && pg_stop && pg "$pg_bin/pg_checksums" --check -D "$mnt/pg" >/dev/null
}

# No program sees an error, or finds anything but what it wrote.
check_outlived() {
    local pg_bin postmaster job jobs=() name before=none pid kills=0 until tries
    need_postgres
    have fsx
    have git
    have make
    mount_again allow_other
    cp -a "$tree" "$mnt/tree"
    c_project "$mnt/project"
    git -c init.defaultBranch=main init -q "$mnt/repo"
    { echo 'nomsyncafterwrite = true' && fsx_config 1; } >"$work/fsx.toml"
    pg_create 'checkpoint_timeout = 30s' 'max_wal_size = 64MB'
    pg_start
    pg pgbench -q -i -s 2 >"$work/pgbench.log" 2>&1
    : >"$work/pg/log"
    rm -f "$work"/{enough,failed.*,calls.*}
    set -m
    for name in copy_tree build_program run_pgbench run_fsx commit_change; do again "$name" "$name" & jobs+=($!); done
    set +m
    ends_with_check "${jobs[@]/#/-}"
    until=$((SECONDS + seconds))
    while [ "$SECONDS" -lt "$until" ] && [ ! -e "$work/enough" ]; do
        # Every two seconds.
        sleep "$((RANDOM % 2 + 1)).$((RANDOM % 10))"
        pid=$(server || true)
        # There is none while the next one starts.
        [[ $pid =~ ^[0-9]+$ ]] && [ "$pid" != "$before" ] || continue
        kill -9 "$pid"
        before=$pid
        kills=$((kills + 1))
    done
    touch "$work/enough"
    for tries in $(seq 1200); do
        jobs -r >"$work/running"
        [ -s "$work/running" ] || break
        sleep 0.1
    done
    [ ! -s "$work/running" ] || {
        say "    a program hangs: $(cat "$work/running")"
        ps -eo pid,stat,wchan:30,args | grep -F "$mnt"
        return 1
    }
    for job in "${jobs[@]}"; do wait "$job" || true; done
    ! cat "$work"/failed.* 2>/dev/null || { say "    $kills servers were killed"; return 1; }
    [ "$kills" -ge $((seconds / 8)) ] || { say "    only $kills servers were killed in $seconds s"; return 1; }
    say "    $kills servers killed in $seconds s; no error in" \
        "$(cat "$work/calls.copy_tree") copies, $(cat "$work/calls.build_program") builds," \
        "$(sql 'select count(*) from pgbench_history') transactions, $(cat "$work/calls.run_fsx") runs of fsx," \
        "$(cat "$work/calls.commit_change") commits"
    pg_stop
    ! grep -E 'PANIC|ERROR|could not|corrupt' "$work/pg/log" || return 1
    contents_are_right
    "$terrane" pool status -v p >"$work/status"
    grep -q 'errors: none' "$work/status" || { cat "$work/status"; return 1; }
    ! grep -iE 'panick|left out' "$TERRANE_STATE_DIR"/*.log || return 1
    mount_again allow_other
    contents_are_right
}


# What is acknowledged to them is written down beside the mount.
start_writers() { # kinds...
    local kind next
    writers=() clients=()
    for kind in "$@"; do
        : >"$work/acknowledged.$kind"
        case $kind in
            postgres)
                history=$(sql 'select count(*) from pgbench_history')
                pg pgbench -n -c 4 -j 2 -T 600 >"$work/pgbench" 2>&1 &
                clients+=($!)
                # The number of each insert is said when its commit was acknowledged.
                next=$(sql 'select coalesce(max(n), 0) + 1 from seen')
                seq "$next" "$((next + 500000))" | sed 's/.*/insert into seen values (&);\n\\echo &/' >"$work/pg/inserts"
                pg psql -X -q -v ON_ERROR_STOP=1 -f "$work/pg/inserts" >"$work/acknowledged.postgres" 2>/dev/null &
                clients+=($!)
                ;;
            *)
                python3 "$top/scripts/databases.py" write "$kind" "$mnt/$kind" >"$work/acknowledged.$kind" 2>"$work/said.$kind" &
                writers+=($!)
                ;;
        esac
    done
    ends_with_check "${writers[@]}" "${clients[@]}"
}

# All that has anything in memory ends at once, and what is on the device stays.
cut_power() {
    local pid device=${TERRANE_POOL_DEVICE:-$work/pool.img}
    pid=$(server)
    # Writers first. SQLite takes a directory that it cannot open for one that needs no sync, so with a rollback journal it says yes once
    # more if the mount is gone and it is not.
    kill -9 "${writers[@]}" "$(supervisor "$pid")" "$pid"
    pg_kill
    # Clients of PostgreSQL are left without it, and end by themselves: so they say all that they were told.
    wait "${writers[@]}" "${clients[@]}" 2>/dev/null || true
    # The dead server lets go of the device a moment later than kill returns.
    while ! flock -n "$device" true; do sleep 0.01; done
    [ -n "${TERRANE_POOL_DEVICE:-}" ] || cp --sparse=always "$work/pool.img" "$work/cut.img"
}

last_of() { tail -n 1 "$work/acknowledged.$1" | grep . || echo 0; }

recovers() { # kinds that wrote...
    local kind told=0
    "$terrane" check p >"$work/check.log" 2>&1 || { cat "$work/check.log"; return 1; }
    "$terrane" mount p "$mnt" -o allow_other || return 1
    for kind in rollback wal rocksdb; do
        python3 "$top/scripts/databases.py" verify "$kind" "$mnt/$kind" "$(last_of "$kind")" >"$work/verified" || { say "    of $kind"; return 1; }
    done
    pg_start || return 1
    if [[ " $* " == *' postgres '* ]]; then
        told=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$work/pgbench")
        [ -n "$told" ] || { cat "$work/pgbench"; return 1; }
    fi
    # Each of the four clients may have had a transaction whose end it was not told of.
    [ "$(sql "select count(*) between $history + $told and $history + $told + 4 from pgbench_history")" = t ] ||
        { say "    of $history + $told transactions, $(sql 'select count(*) from pgbench_history') are there"; return 1; }
    [ "$(sql "select count(*) = coalesce(max(n), 0) and coalesce(max(n), 0) >= $(last_of postgres) from seen")" = t ] ||
        { say "    acknowledged: $(last_of postgres); there: $(sql 'select count(*), max(n) from seen')"; return 1; }
    pg_books_balance || { say '    the sums differ'; return 1; }
    acknowledged[postgres]=$((acknowledged[postgres] + told))
    history=$((history + told))
}

# After a power cut, every database recovers, and has each commit that was acknowledged.
check_databases() {
    local pg_bin postmaster round kind kinds replayed history=0 writers=() clients=()
    local alone=(postgres rollback wal rocksdb)
    local -A acknowledged=() cuts=()
    need_postgres
    have python3
    python3 -c 'import ctypes.util as u; exit(not u.find_library("rocksdb"))' || skip 'RocksDB is not installed'
    mount_again allow_other
    pg_create 'checkpoint_timeout = 30s' 'max_wal_size = 64MB'
    pg_start
    pg pgbench -q -i -s 2 >"$work/pgbench.log" 2>&1
    sql 'create table seen (n bigint primary key)'
    for kind in "${alone[@]}"; do acknowledged[$kind]=0 cuts[$kind]=0; : >"$work/acknowledged.$kind"; done
    for round in $(seq "$rounds"); do
        # All of them at once, and one alone, in turns.
        kinds=("${alone[@]}")
        [ $((round % 2)) = 1 ] || kinds=("${alone[$(((round / 2 - 1) % 4))]}")
        start_writers "${kinds[@]}"
        # On a busy machine a database takes seconds to begin.
        for kind in "${kinds[@]}"; do
            for _ in $(seq 300); do [ -s "$work/acknowledged.$kind" ] && break; sleep 0.1; done
        done
        sleep "$((RANDOM % 3 + 1)).$((RANDOM % 10))"
        cut_power
        recovers "${kinds[@]}" || {
            say "    in round $round, with ${kinds[*]}"
            [ -z "${TERRANE_KEEP:-}" ] || cp --sparse=always "$work"/cut.img "$work"/acknowledged.* "$work/pgbench" "$TERRANE_KEEP/"
            return 1
        }
        for kind in "${kinds[@]}"; do
            cuts[$kind]=$((cuts[$kind] + 1))
            acknowledged[$kind]=$((acknowledged[$kind] + $(wc -l <"$work/acknowledged.$kind")))
        done
    done
    for kind in "${alone[@]}"; do
        say "    $kind: ${cuts[$kind]} power cuts, all ${acknowledged[$kind]} acknowledged commits are there"
        [ "${cuts[$kind]}" = 0 ] || [ "${acknowledged[$kind]}" -gt 0 ] || return 1
    done
    # Without a replay the log was not tested.
    replayed=$(cat "$TERRANE_STATE_DIR"/*.log | awk '
        /changes replayed that no commit contained/ { sum += $(NF - 6); times++ } END { print sum + 0, "in", times + 0 }')
    say "    changes replayed: $replayed imports"
    [ "${replayed%% *}" -gt 0 ] || return 1
    pg_indexes_agree
    pg_stop
    pg "$pg_bin/pg_checksums" --check -D "$mnt/pg" >/dev/null
}

all=(check_outlived check_databases)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
