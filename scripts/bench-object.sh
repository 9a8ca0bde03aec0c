#!/usr/bin/env bash
# A pool in an object store beside the store itself, s3fs, rclone and JuiceFS, with a server for S3 on this machine and 0, 20 and 100 ms added
# to each request.
#
#   scripts/bench-object.sh [--latency 0,20,100] [--peers raw,terrane,s3fs,rclone,juicefs]
#
# Needs root and /dev/fuse, and the corpus of the other benchmarks. The others unpack a twentieth of the small files, and a hundredth if there
# is a delay. JuiceFS has its metadata in a local database (SQLite). NO_BUILD=1 takes the programs that were built before.
set -euo pipefail
. "$(dirname "$0")/pool.sh"

latencies=0,20,100 peers=raw,terrane,s3fs,rclone,juicefs
while [ $# -gt 0 ]; do
    case $1 in
        --latency) latencies=$2; shift 2 ;;
        --peers) peers=$2; shift 2 ;;
        *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
programs=terrane-cli
. "$top/scripts/bench-base.sh"
"$top/scripts/setup.sh" buckets
tools=${CARGO_TARGET_DIR:-$top/target}/tools/bin gateway=$tools/versitygw
[ -x "$gateway" ] || die "no versitygw: see scripts/setup.sh buckets"

started=()
end_servers() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    started=()
}
trap 'unmount "$MNT"; end_servers; cleanup' EXIT
export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=secret-of-a-benchmark CORPUS=$corpus TERRANE=$terrane
export TERRANE_STATE_DIR=$work/state TERRANE_URL=s3://pools/bench
port=$((20000 + RANDOM % 10000))
answers() { for _ in $(seq 100); do (: >"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.1; done; die "nothing listens on $1"; }
for latency in ${latencies//,/ }; do
    export LATENCY_MS=$latency
    mkdir -p "$work/objects/pools"
    ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY "$gateway" --quiet --port "127.0.0.1:$port" posix "$work/objects" >"$work/gateway.log" 2>&1 &
    started+=($!)
    answers "$port"
    python3 "$top/scripts/delay_proxy.py" $((port + 1)) "$port" "$latency" &
    started+=($!)
    answers $((port + 1))
    export AWS_ENDPOINT_URL=http://127.0.0.1:$((port + 1))
    for peer in ${peers//,/ }; do
        printf '%s, %s ms, load %s\n' "$peer" "$latency" "$(cut -d ' ' -f 1 /proc/loadavg)" >&2
        case $peer in
            raw) python3 "$top/scripts/objects.py" raw "$AWS_ENDPOINT_URL" pools >>"$work/rows" ;;
            terrane)
                "$terrane" pool create bench "$TERRANE_URL" -o payload=unsigned >&2
                "$terrane" mount bench "$MNT"
                python3 "$top/scripts/objects.py" terrane "$MNT" "$work" >>"$work/rows"
                "$terrane" umount "$MNT"
                "$terrane" pool export bench
                # Its objects are deleted by another one, which takes over from a machine that seems to be gone.
                "$terrane" mount "$TERRANE_URL" "$MNT"
                begin=$(date +%s%N)
                TERRANE_STATE_DIR=$work/other "$terrane" pool import --take-over "$TERRANE_URL" >&2
                printf '{"latency": "%s", "who": "terrane", "what": "take-over", "value": %s, "unit": "s"}\n' "$latency" \
                    "$(awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { print ns / 1e9 }')" >>"$work/rows"
                # It is fenced, so this fails. With it the server ends.
                "$terrane" umount "$MNT" >&2 || unmount "$MNT"
                rm -rf "$work/state" "$work/other"
                ;;
            s3fs | rclone | juicefs)
                PATH=$tools:$PATH command -v "$peer" >/dev/null || { loud "SKIPPED: no $peer"; continue; }
                mkdir -p "$work/objects/files-$peer"
                if [ "$peer" = s3fs ]; then
                    export FOREIGN_MOUNT="s3fs files-s3fs $MNT -o url=$AWS_ENDPOINT_URL -o use_path_request_style -o use_cache="
                elif [ "$peer" = juicefs ]; then
                    juicefs=$tools/juicefs
                    "$juicefs" format --storage s3 --bucket "$AWS_ENDPOINT_URL/files-juicefs" --access-key "$AWS_ACCESS_KEY_ID" \
                        --secret-key "$AWS_SECRET_ACCESS_KEY" --trash-days 0 "sqlite3://$work/juicefs.db" bench >"$work/juicefs.log" 2>&1 \
                        || die "juicefs: $(tail -1 "$work/juicefs.log")"
                    # Without what it keeps on the local disk from an earlier mount.
                    FOREIGN_MOUNT="rm -rf $work/juicefs; $juicefs mount -d --no-syslog --log $work/juicefs.log --cache-dir $work/juicefs --no-usage-report"
                    export FOREIGN_MOUNT="$FOREIGN_MOUNT --backup-meta 0 sqlite3://$work/juicefs.db $MNT >/dev/null 2>&1"
                else
                    # With its cache, without which it refuses programs that seek. A file is put at once, and the cache goes with the mount.
                    export RCLONE_ADDRESS=127.0.0.1:$((port + 2)) RCLONE_LOG=$work/rclone.log RCLONE_CONFIG=/dev/null
                    export RCLONE_CONFIG_BENCH_TYPE=s3 RCLONE_CONFIG_BENCH_PROVIDER=Other RCLONE_CONFIG_BENCH_ENV_AUTH=true
                    export RCLONE_CONFIG_BENCH_ENDPOINT=$AWS_ENDPOINT_URL
                    FOREIGN_MOUNT="rm -rf $work/rclone; env -u AWS_CA_BUNDLE rclone mount bench:files-rclone $MNT -v --vfs-cache-mode writes"
                    export FOREIGN_MOUNT="$FOREIGN_MOUNT --vfs-write-back 0s --cache-dir $work/rclone --transfers 8 --rc --rc-no-auth --rc-addr $RCLONE_ADDRESS >$RCLONE_LOG 2>&1 &"
                fi
                bash -c "$FOREIGN_MOUNT"
                for _ in $(seq 100); do is_mounted "$MNT" && break; sleep 0.1; done
                is_mounted "$MNT" || die "$peer did not mount"
                python3 "$top/scripts/objects.py" "$peer" "$MNT" "$work" | tee -a "$work/rows" >&2
                unmount "$MNT"
                rm -rf "$work/juicefs.db" "$work/juicefs"
                ;;
        esac
    done
    end_servers
    rm -rf "$work/objects"
done
python3 "$top/scripts/objects.py" table "$work/rows"
say "load at the end: $(cut -d ' ' -f 1-3 /proc/loadavg)"
