# Sourced by suites that run PostgreSQL on the mount, which must be one with allow_other. Root runs it as its user "postgres".
#
# A check that calls these has `pg_bin` and `postmaster` as locals; its database is in $mnt/pg, what lies beside it in $work/pg.

need_postgres() {
    is_root || skip "it needs root, to become the user postgres"
    pg_bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
    [ -n "$pg_bin" ] && id postgres >/dev/null 2>&1 || skip "PostgreSQL is not installed"
}

pg() { (cd / && exec runuser -u postgres -- env PGHOST="$work/pg" PGDATABASE=postgres "$@"); }
sql() { pg psql -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"; }

pg_create() { # lines of postgresql.conf...
    install -d -o postgres "$work/pg"
    install -d -o postgres -m 700 "$mnt/pg"
    pg "$pg_bin/initdb" -D "$mnt/pg" --auth=trust --data-checksums >/dev/null
    printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$work/pg'" "$@" >>"$mnt/pg/postgresql.conf"
}

pg_start() {
    pg "$pg_bin/pg_ctl" -w -t 120 -D "$mnt/pg" -l "$work/pg/log" start >/dev/null || { tail -n 20 "$work/pg/log"; return 1; }
    postmaster=$(head -n 1 "$mnt/pg/postmaster.pid")
    ends_with_check "$postmaster"
}

pg_stop() { pg "$pg_bin/pg_ctl" -w -t 120 -D "$mnt/pg" -m fast stop >/dev/null; }

# Without the data directory, which is gone: by process ids.
pg_kill() {
    local pid pids
    pids="$postmaster $(pgrep -P "$postmaster" || true)"
    for pid in $pids; do kill -9 "$pid" 2>/dev/null || true; done
    for pid in $pids; do
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    done
}

# Each transaction of pgbench moves one amount through four tables.
pg_books_balance() {
    [ "$(sql 'select (select sum(abalance) from pgbench_accounts) = s and (select sum(tbalance) from pgbench_tellers) = s
        and (select sum(bbalance) from pgbench_branches) = s from (select coalesce(sum(delta), 0) s from pgbench_history) h')" = t ]
}

# Every index has what its table has.
pg_indexes_agree() { pg "$pg_bin/pg_amcheck" --install-missing --heapallindexed >"$work/amcheck" 2>&1 || { cat "$work/amcheck"; return 1; }; }
