#!/usr/bin/env bash
# The POSIX suites: what others wrote to judge file systems, and what stresses them, on a real mount.
#
#   scripts/suites.sh               as in `make test`
#   scripts/suites.sh --soak        minutes instead of seconds of each
#   scripts/suites.sh check_fsx     only these
#
# checks.sh has what runs them.
set -euo pipefail
. "$(dirname "$0")/checks.sh"
. "$top/scripts/postgres.sh"

soak=
[ "${1:-}" = --soak ] && { soak=1; shift; }
# Suites that change users must reach the mount.
chmod 755 "$work"
in_soak() { if [ -n "$soak" ]; then echo "$1"; else echo "$2"; fi; }

# Its cases on ACLs are about those of NFSv4, on FreeBSD; it has none on extended attributes. scripts/xattrs.sh judges both.
# Cases that pjdfstest itself leaves out on Terrane, each a line of SEMANTICS.md.
pjdfstest_left_out="link::link_count_max"

pjdfstest_on() { # directory: sets passed, failed, left_out, names_left_out
    local out=$work/pjdfstest.out erofs=$work/erofs.out
    passed=0 failed=0 left_out=0
    pjdfstest -c "$work/pjdfstest.toml" -p "$1" -s "$work" >"$out" 2>&1 || true
    # What needs a read-only mount goes alone: the suite keeps files open for writing now and then, and then nothing (ext4 either)
    # can be made read-only.
    if is_root; then
        sed -i 's/allow_remount = false/allow_remount = true/' "$work/pjdfstest.toml"
        PATH=$work/bin:$PATH pjdfstest -c "$work/pjdfstest.toml" -p "$1" -s "$work" erofs >"$erofs" 2>&1 || true
        sed -i 's/allow_remount = true/allow_remount = false/' "$work/pjdfstest.toml"
    else
        : >"$erofs"
    fi
    names_left_out=$(awk '$2 == "skipped" && !($1 ~ /::erofs_/) { print $1 }' "$out")
    left_out=$(printf '%s' "$names_left_out" | grep -c . || true)
    read -r passed failed < <(awk '/^Summary:/ { failed += $2; passed += $6 } END { print passed + 0, failed + 0 }' "$out" "$erofs")
    [ "$passed" -gt 0 ] || { tail -n 20 "$out"; return 1; }
    grep -h -A 2 ' FAILED$' "$out" "$erofs" | sed 's/^/    /' || true
}

check_pjdfstest() {
    local passed failed left_out names_left_out ours beside
    have pjdfstest
    cat >"$work/pjdfstest.toml" <<'EOT'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
EOT
    # mount(8) hands a remount to /sbin/mount.fuse.terrane, which is not installed here: `mount -o remount,.. DIR` comes to us at once.
    mkdir -p "$work/bin"
    cat >"$work/bin/mount" <<EOT
#!/bin/sh
PATH=\${PATH#*:}
case \$3 in
    $mnt) exec "$terrane" mount p "\$3" -o "\$2" ;;
    *) exec mount "\$@" ;;
esac
EOT
    chmod +x "$work/bin/mount"
    is_root && mount_again allow_other
    pjdfstest_on "$mnt"
    ours="Terrane $passed passed, $failed failed, $left_out left out"
    local failed_here=$failed left_out_here=$names_left_out
    beside="ext4: not run, it needs root and a loop device"
    if is_root && ext4_on_loop 512M; then
        pjdfstest_on "$work/ext4"
        beside="ext4 $passed passed, $failed failed, $left_out left out"
        umount "$work/ext4"
    fi
    say "    $ours; $beside"
    [ "$failed_here" = 0 ] || return 1
    # Not being root leaves out most.
    ! is_root || [ "$left_out_here" = "$pjdfstest_left_out" ] || { say "    left out: $left_out_here"; return 1; }
}

# Record size, words after -o, share of the operations in percent. With msync every mapped write is a commit: that is right, and slow,
# so most leave it to the kernel. `clone`: all operations on whole records, so copies share blocks.
fsx_runs='
128K  -          25  lazy
4K    -          15  lazy
1M    -          10  lazy
16K   -          15  lazy
64K   direct_io  10  lazy
128K  -           5  msync
4K    -          5   clone
4K    direct_io  5   clone
8K    -          5   clone
4K    -          5   clone
'

check_fsx() {
    local ops seed=0 record words share how sum blocks=0
    ops=$(in_soak 1000000 40000)
    have fsx
    fsx_config 0.1 >"$work/fsx-msync.toml"
    sed '1i nomsyncafterwrite = true' "$work/fsx-msync.toml" >"$work/fsx-lazy.toml"
    # A commit now and then: only what is stored is shared. Few operations that end sharing of much. At the end of the file an aligned
    # posix_fallocate has length 0.
    sed -e 's/^min = 1$/min = 4096\nalign = 4096/' -e 's/^\(copy_file_range\) = .*/\1 = 20/' -e 's/^\(fsync\) = .*/\1 = 5/' \
        -e 's/^\(truncate\|punch_hole\) = .*/\1 = 0.5/' -e 's/^\(write\|mapwrite\) = .*/\1 = 5/' -e /posix_fallocate/d \
        "$work/fsx-lazy.toml" >"$work/fsx-clone.toml"
    local base
    base=$(seed_base)
    while read -r record words share how; do
        [ -n "$record" ] || continue
        seed=$((seed + 1))
        "$terrane" fs set "recordsize=$record" p
        if [ "$words" = - ]; then mount_again; else mount_again "$words"; fi
        fsx -q -q -N "$((ops * share / 100))" -S "$((base + seed))" -f "$work/fsx-$how.toml" -P "$work" "$mnt/fsx-$seed" ||
            { say "    fsx -S $((base + seed)), recordsize $record, $words"; return 1; }
        sum=$(sha256sum "$mnt/fsx-$seed")
        if [ "$how" = clone ]; then
            "$terrane" sync p
            blocks=$((blocks + $("$terrane" pool status --json p | sed -n 's/.*"shared_blocks": *\([0-9]*\).*/\1/p')))
        fi
        mount_again
        [ "$(sha256sum "$mnt/fsx-$seed")" = "$sum" ] || { say "    seed $((base + seed)): another file after a new mount"; return 1; }
    done <<<"$fsx_runs"
    [ "$blocks" -gt 0 ] || { say "    copies shared no blocks"; return 1; }
    say "    $ops operations, seeds from $((base + 1)) on, $blocks blocks shared at the end"
}

# Listings while names come and go, and `rm -r` while others list.
check_storm() {
    if [ -z "${TERRANE_SIM:-}" ]; then
        (cd "$top" && nice -n 5 cargo build --quiet -p terrane-sim)
        TERRANE_SIM=${CARGO_TARGET_DIR:-$top/target}/debug/terrane-sim
    fi
    "$TERRANE_SIM" storm --dir "$mnt/storm" --seconds "$(in_soak 300 10)" --seed "$(seed_base)" >"$work/storm" ||
        { cat "$work/storm"; return 1; }
    say "    $(cat "$work/storm")"
}

# The class "filesystem" of stress-ng 0.15 without
#   bind-mount (pathological: it may hang the machine), binderfs, procfs, eventfd, ioprio (another file system, or none),
#   io (it syncs every file system of the machine; here fsync is in hdd and iomix);
# with what others have that works on files.
stressors='access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify fcntl fiemap file-ioctl
    filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify iomix lease link locka lockf lockofd mknod open rename
    symlink sync-file touch utime verity xattr
    aio aiol mincore mmap mmapfork msync readahead revio seek sendfile splice'

check_stress() {
    local stressor words=() seconds
    have stress-ng
    # In front, so that a daemon that ended, for whatever reason, is seen.
    "$terrane" umount "$mnt"
    mount_in_front
    mkdir "$mnt/together"
    seconds=$(in_soak 180 20)
    for stressor in $stressors; do words+=("--$stressor" 1); done
    # All at once: more processes than threads that answer them.
    stress_ng together "$seconds" "${words[@]}"
    if [ -n "$soak" ]; then
        for stressor in $stressors; do stress_ng . 10 "--$stressor" 4; done
    fi
    rm -rf "$mnt/together"
    kill -0 "$daemon" || { say "    the daemon has ended"; return 1; }
    ! grep -iE 'panick|abort' "$work/daemon.log" || return 1
    "$terrane" umount "$mnt"
    wait "$daemon"
    "$terrane" check p
    "$terrane" mount p "$mnt"
}

stress_ng() { # directory, seconds, words...
    local dir=$1 seconds=$2 status=0
    shift 2
    stress-ng --temp-path "$mnt/$dir" --timeout "$seconds" --verify --hdd-bytes 64m --iomix-bytes 64m --mmap-bytes 32m \
        --readahead-bytes 64m --revio-bytes 64m --copy-file-bytes 128m --fallocate-bytes 64m --seek-size 64m --sync-file-bytes 32m \
        --aiol-requests 16 "$@" >"$work/stress.log" 2>&1 || status=$?
    [ "$status" = 0 ] && return
    say "    stress-ng ended with $status: $*"
    grep -vE 'info|metrc' "$work/stress.log" | tail -n 30
    return 1
}

# name, engine, direct, pattern, block sizes, other words
fio_jobs='
psync-4k      psync    0  randrw     4k         --fsync=64
psync-mixed   psync    0  randwrite  512-256k   --fdatasync=32
direct-16k    psync    1  randrw     16k        --fsync=128
direct-mixed  libaio   1  randwrite  4k-128k    --iodepth=8
mapped        mmap     0  randrw     4k         --fsync=256
mapped-seq    mmap     0  write      64k        --overwrite=0
sync          psync    0  write      128k       --sync=1
'

check_fio() {
    local size only
    size=$(in_soak 512M 24M)
    have fio
    for only in '' --verify_only; do
        while read -r name engine direct pattern sizes more; do
            [ -n "$name" ] || continue
            local bytes=--bs=$sizes
            [[ $sizes != *-* ]] || bytes=--bsrange=$sizes
            # shellcheck disable=SC2086
            fio --aux-path="$work" --name="$name" --directory="$mnt" --size="$size" --ioengine="$engine" --direct="$direct" --rw="$pattern" "$bytes" \
                --verify=crc32c --verify_fatal=1 --do_verify=1 --buffer_compress_percentage=50 --refill_buffers --group_reporting \
                --fallocate=none --output="$work/fio.log" $more $only || { cat "$work/fio.log"; return 1; }
            ! grep -E 'verify: bad|err=[^ 0]' "$work/fio.log" || return 1
        done <<<"$fio_jobs"
        # What was right once must be right after a new mount.
        mount_again
    done
}

# What programs find in a snapshot that was taken while they wrote: PostgreSQL, SQLite and git in a clone, restic in the snapshot.
check_snapshot_tools() {
    local pg_bin postmaster bench lite snap=$work/snap clone=$work/clone copy port=5433
    need_postgres
    have sqlite3
    have git
    have restic
    mount_again allow_other
    mkdir -p "$snap" "$clone"
    pg_create
    pg_start
    pg pgbench -q -i -s 2 >"$work/pgbench.log" 2>&1
    git -c init.defaultBranch=main init -q "$mnt/repo"
    sqlite3 "$mnt/lite" 'pragma journal_mode=wal; create table seen (n integer primary key, pad text)' >/dev/null

    pg pgbench -n -c 4 -j 2 -T 600 >"$work/pgbench.log" 2>&1 &
    bench=$!
    while echo "begin; insert into seen (pad) values (hex(randomblob(200))); insert into seen (pad) values ('two'); commit;"; do :; done |
        sqlite3 "$mnt/lite" 2>/dev/null &
    lite=$!
    ends_with_check "$bench" "$lite"
    for copy in 1 2 3; do
        cp "$top"/crates/zap/src/*.rs "$mnt/repo/"
        git -C "$mnt/repo" add -A
        git -C "$mnt/repo" -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m "$copy"
        sleep 1
    done
    "$terrane" snapshot p@live
    sleep 1
    "$terrane" fs clone p@live p/clone
    "$terrane" mount p@live "$snap" -o allow_other
    "$terrane" mount p/clone "$clone" -o allow_other

    # As after the loss of power at the moment of the snapshot. The writer goes on meanwhile.
    kill -0 "$bench"
    rm -f "$clone/pg/postmaster.pid"
    pg "$pg_bin/pg_ctl" -w -t 120 -D "$clone/pg" -o "-p $port" -l "$work/pg/clone.log" start >/dev/null || { cat "$work/pg/clone.log"; return 1; }
    ends_with_check "$(head -n 1 "$clone/pg/postmaster.pid")"
    (export PGPORT=$port; pg_books_balance) || { say "    the sums in the clone differ"; return 1; }
    (export PGPORT=$port; pg_indexes_agree)
    say "    PostgreSQL in the clone: $(PGPORT=$port sql 'select count(*) from pgbench_history') transactions of pgbench balance"
    pg "$pg_bin/pg_ctl" -w -D "$clone/pg" -m fast stop >/dev/null
    [ "$(sqlite3 "$clone/lite" 'pragma integrity_check')" = ok ]
    [ "$(sqlite3 "$clone/lite" "select count(*) > 0 and 2 * count(*) filter (where pad = 'two') = count(*) from seen")" = 1 ]
    git -C "$clone/repo" fsck --full 2>&1 | grep -v '^notice' && return 1
    [ "$(git -C "$clone/repo" rev-list --count HEAD)" = 3 ]
    echo changed >"$clone/repo/new"
    git -C "$clone/repo" add -A
    git -C "$clone/repo" -c user.name=t -c user.email=t@example.com commit -q -m 'in the clone'
    [ "$(git -C "$mnt/repo" rev-list --count HEAD)" = 3 ]

    kill "$bench" "$lite"
    wait "$bench" "$lite" 2>/dev/null || true
    export RESTIC_PASSWORD=none RESTIC_REPOSITORY=$work/restic
    restic init -q
    (cd "$snap" && restic backup -q --no-cache .)
    restic check -q --no-cache --read-data
    restic restore -q --no-cache latest --target "$work/restored"
    diff -r --no-dereference "$snap" "$work/restored"
    # The second backup reads no file, because inode numbers and times are those of the first.
    (cd "$snap" && restic backup --no-cache .) >"$work/restic.log"
    grep -q ' 0 new, *0 changed' "$work/restic.log" || { cat "$work/restic.log"; return 1; }
    pg_stop
    "$terrane" umount "$snap"
    "$terrane" umount "$clone"
    rm -rf "$work/restored" "$work/restic"
}

# A tree with links, odd names and many small files; with hard links and holes added.
prepare_tree() {
    local source=$work/tree
    rm -rf "$source"
    mkdir "$source"
    cp -a "${TERRANE_TREE:-/usr/include}/linux" "$source/" 2>/dev/null || cp -a /etc/. "$source/"
    echo plain >"$source/first name"
    ln "$source/first name" "$source/second name"
    ln -s nowhere "$source/dangling"
    mkfifo "$source/fifo"
    truncate -s 3M "$source/hole"
    printf x | dd of="$source/hole" bs=1 seek=1M conv=notrunc status=none
    touch -d '1987-06-05 04:03:02.123456789' "$source/old"
    chmod 4711 "$source/old"
    printf 'odd' >"$source/$(printf 'odd\nname \377')"
}

# What borg backs up of the snapshots `one` and `two`, each at $snap while it does so. The second time it should read only what has changed.
borg_reads_only_changes() { # function that shows a snapshot at $snap, prefix of the archives, words for borg create...
    local show=$1 prefix=$2 name
    shift 2
    for name in one two; do
        "$show" "$name"
        (cd "$snap" && borg create --list --filter AM "$@" "::$prefix-$name" .) >"$work/borg.log" 2>&1 || { cat "$work/borg.log"; return 1; }
        [ "$name" = one ] || rsync_agrees "$snap/tree" "$work/restore-of/tree"
        umount "$snap"
    done
    # It never trusts the newest file of a backup, as that may change once more within the same moment.
    [ "$(sort "$work/borg.log")" = "$(printf '%s\n' 'A newest' 'A tree/added' 'M tree/old')" ] || { cat "$work/borg.log"; return 1; }
}
show_alone() { "$terrane" mount "p@$1" "$snap"; }
show_inside() { mount --bind "$mnt/.terrane/snapshot/$1" "$snap"; }

# borg knows a file again by path, size, time of change and inode number. Inside of a mount each snapshot has numbers of its own.
check_borg() {
    local snap=$work/snap archive
    is_root || skip "it needs root, to show two snapshots at one place"
    have borg
    have rsync
    export BORG_BASE_DIR=$work/borg BORG_REPO=$work/borg.repo BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
    mkdir -p "$snap"
    borg init -e none
    prepare_tree
    cp -a "$work/tree" "$mnt/"
    sleep 0.1
    touch "$mnt/newest"
    "$terrane" snapshot p@one
    sleep 0.1
    echo more >>"$mnt/tree/old"
    echo new >"$mnt/tree/added"
    "$terrane" snapshot p@two
    cp -a "$mnt" "$work/restore-of"
    borg_reads_only_changes show_alone alone
    BORG_FILES_CACHE_SUFFIX=inside borg_reads_only_changes show_inside inside --files-cache=ctime,size
    borg check --verify-data
    for archive in alone-two inside-two; do
        mkdir "$work/restored"
        (cd "$work/restored" && borg extract "::$archive")
        rsync_agrees "$work/restored/tree" "$work/restore-of/tree"
        rm -rf "$work/restored"
    done
    rm -rf "$work/tree" "$work/restore-of" "$work/borg" "$work/borg.repo"
}

# Nothing is left to do: contents, times to the nanosecond, owners, links.
rsync_agrees() { # from, to
    local differ
    differ=$(rsync -aHnic --modify-window=-1 --delete "$1/" "$2/")
    [ -z "$differ" ] || { say "$differ" | head -n 20 | sed 's/^/    /'; return 1; }
}

# A container's writable layer: an overlay with its upper directory here must show what a plain directory shows after the same work,
# now and when it is mounted again.
check_overlay() {
    is_root || skip "only root mounts overlays"
    grep -q overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "the kernel has no overlayfs"
    local words layer links merged=$work/merged
    mkdir -p "$work"/{lower/dir/sub,lower/old,merged}
    cp -a /usr/include/linux/netfilter "$work/lower/tree"
    head -c 300000 /dev/urandom >"$work/lower/data"
    head -c 200000 /dev/urandom >"$work/lower/mapped"
    printf one >"$work/lower/dir/one"
    printf two >"$work/lower/dir/sub/two"
    printf x >"$work/lower/old/x"
    ln "$work/lower/dir/one" "$work/lower/dir/linked"
    cp "$(type -P true)" "$work/lower/program"
    live_in() ( # directory: as package managers and daemons of a container do
        cd "$1"
        printf appended >>data
        python3 -c 'import mmap, sys; f = open("mapped", "r+b"); m = mmap.mmap(f.fileno(), 0); m[100000:100003] = b"abc"; m.flush()'
        chown 7:8 program && chmod 4750 program && python3 -c 'import os; os.setxattr("program", "trusted.x", b"y")'
        rm dir/sub/two && rmdir dir/sub && mkdir dir/sub && printf new >dir/sub/three
        rm -r old && printf file >old
        mv dir/one dir/moved && mv data dir/linked
        mv tree bush && rm -r bush/ipset && mkdir bush/ipset && cp bush/x_tables.h bush/ipset/
        mv bush/xt_mark.h bush/nf_nat.h
        for i in $(seq 12); do printf '%s' "$i" >dir/.tmp && sync dir/.tmp && mv dir/.tmp "dir/package.$((i % 7))"; done
        mkfifo pipe && ln -s dir/moved link && ln dir/moved again && mknod null c 1 3
        truncate -s 1M sparse && fallocate -l 64K sparse && cp --sparse=always sparse copied
        tar -C bush -cf - . | (mkdir unpacked && tar -C unpacked -xf -)
        ./program
        find . -name '*.h' -path './unpacked/*' -delete
    )
    # With nfs_export overlayfs counts its own links to what it copied up, wherever that lies.
    shown() { (cd "$1" && find . ! -type d -printf "%P %M %U %G ${links} %l %y %s\n" -o -printf '%P %M %U %G\n' | sort); }
    same() {
        diff <(shown "$work/plain") <(shown "$merged") && diff -r --no-dereference --exclude={pipe,null} "$work/plain" "$merged" &&
            python3 -c 'import os, sys; assert os.getxattr(sys.argv[1], "trusted.x") == b"y"' "$merged/program"
    }
    rm -rf "$work/plain" && cp -a "$work/lower" "$work/plain"
    live_in "$work/plain"
    for words in index=off redirect_dir=on,index=on,metacopy=on index=on,nfs_export=on userxattr; do
        links=%n
        [[ $words != *nfs_export* ]] || links=
        layer=$mnt/${words//[,=]/-}
        mkdir "$layer" "$layer"/{upper,work}
        overlay() { mount -t overlay overlay -o "lowerdir=$work/lower,upperdir=$layer/upper,workdir=$layer/work,$words" "$merged"; }
        overlay || { say "    no overlay with $words"; dmesg | tail -n 3; return 1; }
        { live_in "$merged" && same; } || { umount "$merged"; say "    with $words"; return 1; }
        umount "$merged"
        mount_again
        overlay
        same || { umount "$merged"; say "    with $words, mounted again"; return 1; }
        umount "$merged"
    done
}

check_rsync() {
    have rsync
    prepare_tree
    rsync -aHS --modify-window=-1 "$work/tree/" "$mnt/copy/"
    rsync_agrees "$work/tree" "$mnt/copy"
    mount_again
    rsync_agrees "$work/tree" "$mnt/copy"
    find "$work/tree" -type f -name 'i*.h' | while read -r file; do echo changed >>"$file"; done
    find "$work/tree" -type f -name 'n*.h' -delete
    rsync -aHS --modify-window=-1 --inplace --no-whole-file --delete "$work/tree/" "$mnt/copy/"
    diff -r --no-dereference -x fifo "$work/tree" "$mnt/copy"
    # From the mount to itself, with names that are remade by rename.
    rsync -aH --modify-window=-1 --delay-updates "$mnt/copy/" "$mnt/again/"
    rsync_agrees "$mnt/copy" "$mnt/again"
    rm -r "$work/tree"
}

check_tar() {
    prepare_tree
    tar -C "$work" --format=posix -cSf "$work/tree.tar" tree
    tar -C "$mnt" --same-owner -xpf "$work/tree.tar"
    tar -C "$mnt" -df "$work/tree.tar"
    mount_again
    tar -C "$mnt" -df "$work/tree.tar"
    # An archive on the mount, of the mount.
    tar -C "$mnt" --format=posix -cSf "$mnt/tree.tar" tree
    tar -C "$mnt" -df "$mnt/tree.tar"
    [ "$(stat -c %h "$mnt/tree/second name")" = 2 ]
    rm -r "$work/tree" "$work/tree.tar"
}

# Terrane, built inside Terrane.
check_cargo() {
    local packages='-p terrane-wire -p terrane-zap'
    [ -z "$soak" ] || packages='--workspace --all-targets'
    mkdir "$mnt/source"
    { git -C "$top" ls-files -z 2>/dev/null || (cd "$top" && find . -path ./target -prune -o -type f -print0); } |
        tar -C "$top" --null --files-from=- -c | tar -C "$mnt/source" -x
    # shellcheck disable=SC2086
    build() { (cd "$mnt/source" && CARGO_TARGET_DIR=$mnt/target nice -n 5 cargo build --locked $packages 2>&1); }
    build >"$work/cargo.log" || { tail -n 30 "$work/cargo.log"; return 1; }
    mount_again
    # Nothing is built again: times are right.
    build >"$work/cargo.log"
    ! grep -E 'Compiling|Dirty' "$work/cargo.log" || return 1
    [ -n "$soak" ] || return 0
    (cd "$mnt/source" && CARGO_TARGET_DIR=$mnt/target nice -n 5 cargo test --quiet --locked -p terrane-zap) >"$work/cargo.log" 2>&1 ||
        { tail -n 30 "$work/cargo.log"; return 1; }
}

all=(check_pjdfstest check_overlay check_storm check_fsx check_stress check_fio check_snapshot_tools check_borg check_rsync check_tar check_cargo)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
