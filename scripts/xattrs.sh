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
    "$target/debug/attributes" "$dir/judged" --differs-as "$differs_as" "$@" >"$work/judged" 2>&1 || { cat "$work/judged"; return 1; }
    counts=$(tail -n 1 "$work/judged")
    grep '^    ' "$work/judged" || true
    say "    $differs_as: ${counts#attributes: }"
}

check_attributes() {
    ext4_beside
    (cd "$top" && nice -n 5 cargo build --quiet -p attributes)
    judged ext4 "$work/ext4" --remount "umount '$work/ext4' && mount -o loop,\$MODE '$work/ext4.img' '$work/ext4'"
    umount "$work/ext4"
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
        done' sh "$dir/upstream" >"$found"
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
    say "    ext4: $(package_counts "$work/packages-ext4") commands of attr's and acl's tests"
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

all=(check_attributes check_packages check_acls)
[ $# -gt 0 ] && all=("$@")
run_checks "${all[@]}"
