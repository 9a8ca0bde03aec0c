#!/usr/bin/env bash
# Extended attributes, ACLs and file capabilities, judged on a real mount and on ext4 beside it. What ext4 passes is a fair judge;
# where the two differ, that is written down.
#
#   scripts/xattrs.sh                     as in `make test`
#   scripts/xattrs.sh check_packages      only these
#
# checks.sh has what runs them.
set -euo pipefail
. "$(dirname "$0")/checks.sh"

# Other users must reach the mount.
chmod 755 "$work"
target=${CARGO_TARGET_DIR:-$top/target}

# With values of up to 64 KiB. How it is made is what the program's list of differences holds for.
ext4_beside() {
    is_root || skip "it needs root, to ask as other users"
    ext4_on_loop 512M -b 4096 -I 256 -O ea_inode || skip "ext4 cannot be mounted here: it needs a loop device"
}

# Our own suite: each error, each limit, each name space, and what the kernel makes of ACLs.
judged() { # ext4 or terrane, directory, words for the program...
    local differs_as=$1 dir=$2 counts
    shift 2
    mkdir -m 755 "$dir/judged"
    "$target/debug/attributes" "$dir/judged" --differs-as "$differs_as" "$@" >"$work/judged" 2>&1 || { grep '^    ' "$work/judged"; grep -v '^    ' "$work/judged"; return 1; }
    counts=$(tail -n 1 "$work/judged")
    say "    $differs_as: ${counts#attributes: }"
    grep '^    ' "$work/judged" || true
}

about_values=(values long-names many full-list names homes large-beside objects together)

# While the mount's server is replaced over and over: requests are asked again, and must not be answered twice.
while_replaced() {
    local replacing times
    mv "$mnt/judged" "$mnt/before-replacing"
    (while [ ! -e "$work/enough" ]; do "$terrane" restart p >/dev/null || exit; echo once; done) >"$work/replaced" &
    replacing=$!
    ends_with_check "$replacing"
    judged terrane "$mnt" "${about_values[@]/#/--only=}" --only=acl --only=inherit
    # Not ended in the middle of it.
    touch "$work/enough"
    wait "$replacing"
    times=$(wc -l <"$work/replaced")
    say "    its server was replaced $times times meanwhile"
    [ "$times" -gt 0 ]
}

check_attributes() {
    ext4_beside
    (cd "$top" && nice -n 5 cargo build --quiet -p attributes)
    judged ext4 "$work/ext4" --remount "umount '$work/ext4' && mount -o loop,\$MODE '$work/ext4.img' '$work/ext4'"
    umount "$work/ext4"
    mount_again allow_other
    local remount="'$terrane' umount '$mnt' && '$terrane' mount p '$mnt' -o allow_other,\$MODE" property
    judged terrane "$mnt" --remount "$remount" --property "'$terrane' fs set \"\$1\" p"
    # Where values lie depends on these, and nothing that can be asked does.
    for property in xattr=dir dnodesize=legacy dnodesize=16k; do
        "$terrane" fs set "$property" p
        mv "$mnt/judged" "$mnt/before-$property"
        judged terrane "$mnt" --remount "$remount" "${about_values[@]/#/--only=}"
    done
    while_replaced
}

# The tests that come with the programs getfattr, setfattr, getfacl and setfacl: each command of them with its outcome. They change
# users and want to know who is in which group: their own lists of users and groups lie over the machine's, for them alone.
package_tests() { # directory on a file system, what it found
    local dir=$1 found=$2
    rm -rf "$dir/upstream"
    cp -r "$target/upstream" "$dir/upstream"
    unshare --mount --propagation private bash -euc '
        cd "$1"
        mount --bind acl/test.passwd /etc/passwd
        mount --bind acl/test.group /etc/group
        # They expect of sh what is bash'"'"'s.
        mount --bind /bin/bash "$(realpath /bin/sh)"
        for package in attr acl; do
            cd "$1/$package"
            for test in *.test root/*.test; do
                echo "== $package $test"
                perl ./run "$test" 2>&1 </dev/null || true
            done
        done' sh "$dir/upstream" | sed "s#$dir#DIR#g" >"$found"
    rm -rf "$dir/upstream"
}

# Commands that passed, of how many.
package_counts() { awk '/^[0-9]+ commands/ { all += $1; passed += substr($3, 2) } END { print passed + 0 " of " all + 0 }' "$1"; }

check_packages() {
    local package
    for package in attr acl; do
        [ -f "$target/upstream/$package/run" ] || skip "the tests of $package are not here: scripts/setup.sh suites gets them"
    done
    have perl
    ext4_beside
    package_tests "$work/ext4" "$work/packages-ext4"
    umount "$work/ext4"
    mount_again allow_other
    package_tests "$mnt" "$work/packages"
    say "    ext4 $(package_counts "$work/packages-ext4"), Terrane $(package_counts "$work/packages") commands of attr's and acl's tests passed"
    # The same outcome of each command, and what a failed one wrote.
    diff "$work/packages-ext4" "$work/packages" || return 1
    ! grep -e '-- failed' "$work/packages" || return 1
}

# What lists do to modes, modes to lists, and directories to what is made in them: by the page that Fs is judged by in process as well,
# which ext4 has to write again; and by a story with other users, which both must tell alike.
check_acls() {
    local page=$top/crates/posix/tests/golden/acls_of_ext4 dir
    have setfacl
    ext4_beside
    (cd "$top" && nice -n 5 cargo build --quiet -p terrane-posix --example acl_vectors)
    for dir in "$work/ext4" "$mnt"; do
        "$target/debug/examples/acl_vectors" "$dir" | diff "$page" -
    done
    mount_again allow_other
    "$top/scripts/acls.sh" "$work/ext4/story" >"$work/story-ext4"
    "$top/scripts/acls.sh" "$mnt/story" >"$work/story"
    umount "$work/ext4"
    diff "$work/story-ext4" "$work/story"
    say "    $(wc -l <"$page") lines of changes and $(wc -l <"$work/story") of a story are ext4's"
}

# A tree with something of each kind on it, on ext4.
prepare_attributes() { # directory
    local tree=$1
    mkdir -p "$tree/shared/below" "$tree/sticky"
    echo plain >"$tree/plain"
    echo few >"$tree/few"
    setfattr -n user.comment -v 'a comment' "$tree/few"
    setfattr -n user.binary -v 0x00ff0a000d22 "$tree/few"
    setfattr -n user.empty "$tree/few"
    setfattr -n trusted.note -v root "$tree/few"
    setfattr -n security.label -v unconfined "$tree/few"
    echo long >"$tree/long"
    setfattr -n user.long -v "$(head -c 2000 /dev/zero | tr '\0' v)" "$tree/long"
    setfattr -n user.longer -v "$(head -c 60000 /dev/zero | tr '\0' w)" "$tree/long"
    ln "$tree/few" "$tree/link"
    ln -s few "$tree/symlink"
    setfattr -h -n trusted.note -v 'of the link' "$tree/symlink"
    setfattr -n user.dir -v 'of the directory' "$tree/shared"
    setfacl -m u:60001:rwx,g:60002:rx "$tree/shared"
    setfacl -d -m u:60001:rwx,g:60002:rx,o::- "$tree/shared"
    echo inherits >"$tree/shared/inherits"
    mkdir "$tree/shared/inherits too"
    echo acl >"$tree/acl"
    setfacl -m u:60001:rw,m::r "$tree/acl"
    mkfifo "$tree/fifo"
    setfacl -m u:60001:rw "$tree/fifo"
    chmod 1777 "$tree/sticky"
    printf '#!/bin/true\n' >"$tree/program"
    chmod 755 "$tree/program"
    setcap cap_net_raw,cap_net_bind_service+ep "$tree/program"
    printf 'odd' >"$tree/$(printf 'odd\nname \377')"
    setfattr -n "$(printf 'user.odd\n\377 name')" -v odd "$tree/$(printf 'odd\nname \377')"
    chown -h 60003:60004 "$tree/plain" "$tree/acl" "$tree/symlink"
}

# Everything that this is about, as text: of two trees the same if they are the same.
attributes_of() { # directory
    (
        cd "$1"
        find . -print0 | sort -z | xargs -0 stat -c '%N %A %u:%g %h'
        find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex
        find . ! -type l -print0 | sort -z | xargs -0 getfacl -n -p
        getcap -r . | sort
    ) 2>&1
}

same_attributes() { # what, directory, as in directory
    diff <(attributes_of "$3") <(attributes_of "$2") >"$work/differ" && return
    say "    $1:"
    head -n 30 "$work/differ" | sed 's/^/    /'
    return 1
}

with_cp() { cp -a "$1" "$2"; }
with_rsync() { rsync -aAXH --numeric-ids "$1/" "$2/"; }
with_tar() {
    mkdir "$2"
    tar -C "$1" --format=posix --xattrs --xattrs-include='*' --acls -cf - . | tar -C "$2" --xattrs --xattrs-include='*' --acls --same-owner -xpf -
}

# Programs that copy attributes, from ext4 to Terrane, within Terrane and back. They must lose no more than on ext4 alone.
check_copies() {
    local how tree=$work/ext4/tree
    have rsync
    have setcap
    ext4_beside
    prepare_attributes "$tree"
    for how in cp rsync tar; do
        "with_$how" "$tree" "$work/ext4/$how"
        "with_$how" "$tree" "$mnt/$how"
        same_attributes "$how" "$mnt/$how" "$work/ext4/$how"
        "with_$how" "$mnt/$how" "$mnt/$how-again"
        same_attributes "$how within" "$mnt/$how-again" "$work/ext4/$how"
        "with_$how" "$mnt/$how-again" "$work/ext4/$how-back"
        same_attributes "$how back" "$work/ext4/$how-back" "$work/ext4/$how"
    done
    same_attributes "tar and rsync" "$mnt/tar" "$mnt/rsync"
    mount_again
    for how in cp rsync tar; do same_attributes "$how, mounted anew" "$mnt/$how" "$work/ext4/$how"; done
    [ -z "$(rsync -aAXHnic --numeric-ids "$tree/" "$mnt/rsync/")" ]
    # What rsync finds to do when only attributes have changed.
    setfattr -n user.comment -v 'another comment' "$tree/few"
    setfattr -x user.binary "$tree/few"
    setfacl -b "$tree/acl"
    setcap -r "$tree/program"
    with_rsync "$tree" "$mnt/rsync"
    same_attributes "rsync of changes" "$mnt/rsync" "$tree"
    capabilities
    umount "$work/ext4"
}

capabilities() {
    local f=$mnt/capable
    printf '#!/bin/true\n' >"$f"
    chmod 755 "$f"
    setcap cap_net_raw+ep "$f"
    mv "$f" "$mnt/moved" && mv "$mnt/moved" "$f"
    mount_again
    [ "$(getcap -n "$f")" = "$f cap_net_raw=ep" ]
    setcap -q -v cap_net_raw+ep "$f"
    mv "$f" "$work/ext4/capable" && mv "$work/ext4/capable" "$f"
    [ "$(getcap -n "$f")" = "$f cap_net_raw=ep" ]
    echo more >>"$f"
    [ -z "$(getcap "$f")" ]
}

# Random operations of several users on both, among them unexpected ones: the same answers, and the same is left.
check_beside() {
    local seed home
    ext4_beside
    (cd "$top" && nice -n 5 cargo build --quiet -p attributes)
    chmod 755 "$work/ext4"
    mount_again allow_other
    # The same for the same commit, others for the next.
    seed=$((16#$(printf '%s' "${TERRANE_SEED_BASE:-1}" | sha256sum | head -c 6)))
    for home in sa dir; do
        "$terrane" fs set "xattr=$home" p
        seed=$((seed + 1))
        "$target/debug/attributes" "$work/ext4" --beside "$mnt" --ops 6000 --seed "$seed" >"$work/beside" || { cat "$work/beside"; return 1; }
        say "    xattr=$home: $(cat "$work/beside")"
        mount_again allow_other
        same_attributes "mounted anew" "$mnt/beside" "$work/ext4/beside"
        rm -rf "$mnt/beside" "$work/ext4/beside"
    done
    umount "$work/ext4"
}

# What the n-th change sets: for the list, for a spill block and for the hidden directory in turn.
value() { # number
    local lens=(20 3000 40000)
    head -c "${lens[$1 % 3]}" < <(yes "value $1") | tr '\n' '.'
}
# Each attribute of each of these files is changed over and over, and a change is noted when it was synced.
files_changed=7 names_changed=5

changes() { # manifest
    local n
    for n in $(seq 100000); do
        setfattr -n "user.$((n % names_changed))" -v "$(value "$n")" "$mnt/kept/$((n % files_changed))" 2>/dev/null || return 0
        sync "$mnt/kept/$((n % files_changed))" 2>/dev/null || return 0
        echo "$n" >>"$1"
    done
}

unsynced_changes() {
    local n
    for n in $(seq 100000); do
        setfattr -n user.noise -v "$(value "$n")" "$mnt/kept/$((n % files_changed))" 2>/dev/null || return 0
        setfacl -m "u:$n:r" "$mnt/kept/$((n % 3))" 2>/dev/null || return 0
        setfattr -x user.noise "$mnt/kept/$((n % files_changed))" 2>/dev/null || return 0
    done
}

# The newest change of each attribute that was noted is there, or a later one of the same, and whole.
promised_values() { # manifest
    local slots=$((files_changed * names_changed)) promised found
    for promised in $(awk -v slots="$slots" '/^[0-9]+$/ { last[$1 % slots] = $1 } END { for (slot in last) print last[slot] }' "$1"); do
        getfattr --absolute-names --only-values -n "user.$((promised % names_changed))" "$mnt/kept/$((promised % files_changed))" >"$work/value"
        found=$(head -c 20 "$work/value" | cut -d. -f1)
        found=${found#value }
        [ "$found" -ge "$promised" ] && [ $((found % slots)) = $((promised % slots)) ] && value "$found" | cmp - "$work/value" ||
            { say "    change $promised: found $found"; return 1; }
    done
}

check_killed() {
    local home n pid jobs tries promised=0
    have setfacl
    "$terrane" umount "$mnt"
    for home in sa dir sa; do
        mount_in_front
        "$terrane" fs set "xattr=$home" p
        rm -rf "$mnt/kept"
        mkdir "$mnt/kept"
        for n in $(seq 0 $((files_changed - 1))); do : >"$mnt/kept/$n"; done
        "$terrane" sync p
        : >"$work/manifest"
        set -m
        changes "$work/manifest" & jobs=($!)
        unsynced_changes & jobs+=($!)
        set +m
        ends_with_check "${jobs[@]/#/-}"
        sleep "1.$((RANDOM % 10))"
        # On a slow disk, or a machine with other work, that much is promised later.
        for tries in $(seq 600); do [ "$(wc -l <"$work/manifest")" -lt 10 ] || break; sleep 0.1; done
        kill -9 "$daemon"
        wait "$daemon" 2>/dev/null || true
        for pid in "${jobs[@]}"; do kill -9 -- "-$pid" 2>/dev/null || true; done
        unmount "$mnt"
        for pid in "${jobs[@]}"; do wait "$pid" 2>/dev/null || true; done
        "$terrane" check p
        mount_in_front
        promised=$((promised + $(wc -l <"$work/manifest")))
        promised_values "$work/manifest"
        "$terrane" umount "$mnt"
        wait "$daemon" || true
    done
    [ "$promised" -ge 30 ] || { say "    only $promised synced changes"; return 1; }
    say "    killed 3 times: the newest of $promised synced changes are there"
    "$terrane" mount p "$mnt"
}

all=(check_attributes check_packages check_acls check_copies check_beside check_killed)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
