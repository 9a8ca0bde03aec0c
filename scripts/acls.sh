#!/usr/bin/env bash
# A day in the life of ACLs, in a directory, told as it went: permissions of users, what new files begin with, what programs make of it.
# As root; other users must reach the directory. On two file systems that do the same it says the same (scripts/xattrs.sh compares).
#
#   scripts/acls.sh DIR
set -euo pipefail

dir=$1
mkdir -m 755 "$dir"
cd "$dir"
umask 022

said() { if "$@" 2>&1; then echo "    ok"; else echo "    no"; fi | sed 's/^.*: //'; }
as() { # user, groups (the first one is his), command...
    local user=$1 groups=$2
    shift 2
    said setpriv --reuid "$user" --regid "${groups%%,*}" --groups "$groups" -- "$@"
}
lists() { find "$@" ! -type l -print0 | LC_ALL=C sort -z | xargs -0 getfacl -n -p --; }
modes() { stat -c '%A %a %u:%g %n' "$@"; }

echo "== who may do what"
echo data >f
chown 1:1 f
chmod 640 f
setfacl -m u:1000:rw,u:1001:-,g:2000:r f
lists f
for who in '1 1' '1000 5' '1001 2000' '5 2000' '5 7,2000' '5 5' '5 1'; do
    for wanted in -r -w -x; do
        echo "$who $wanted: $(as ${who% *} "${who#* }" test "$wanted" f)"
    done
    echo "$who reads: $(as ${who% *} "${who#* }" cat f)"
done
chmod g-w f
echo "1000 after chmod g-w: $(as 1000 5 test -w f)"
setfacl -m m::rw f
modes f

echo "== who may change them"
chown 1000:7 f
for groups in 5 7; do
    chmod 2770 f
    as 1000 "$groups" setfacl -m u:9:r f
    modes f
    chmod 2770 f
    as 1000 "$groups" chmod 2775 f
    modes f
done
as 1001 5 setfacl -m u:9:rw f
as 1001 5 setfacl -b f
as 1001 5 getfacl -n f

echo "== what new files begin with"
mkdir d
setfacl -d -m u:1000:rwx,g:2000:rx d
umask 077
touch d/f
mkdir -p d/a/b
echo g >d/a/b/g
ln -s x d/l
cp f d/copied
mknod d/p p
mknod d/null c 1 3
modes d/* d/a/*
lists d
mkdir -m 1777 sticky
setfacl -d -m o::- sticky
touch sticky/f
chown 0:50 sticky
chmod 2775 sticky
mkdir sticky/d
as 1000 50 touch sticky/mine
modes sticky/*
lists sticky

echo "== taken away, and again"
setfacl -b d/f
setfacl -k d/a
setfacl -x u:1000 d/a/b/g
setfacl -n -m u:3:rwx d/p
lists d
chmod 600 d/a/b/g
setfacl -m g::rw d/a/b/g
lists d/a/b/g
seq 3000 3080 | sed 's/.*/u:&:r/' >many
setfacl -M many d/f
getfacl -n d/f | wc -l

echo "== without a name"
exec 3>d/open
rm d/open
setfacl -m u:77:r /proc/self/fd/3
getfacl -n -p /proc/self/fd/3 | tail -n +2
exec 3>&-

echo "== renamed, linked, kept"
mv d/a e
ln e/b/g hard
setfacl -m u:55:r hard
lists e
getfacl -n -p -R e d | LC_ALL=C sort >saved
find e d ! -type l -print0 | LC_ALL=C sort -z | xargs -0 getfacl -n -p -- >dump
setfacl -R -b e d
setfacl --restore=dump
getfacl -n -p -R e d | LC_ALL=C sort | diff saved -
