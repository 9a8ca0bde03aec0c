#!/usr/bin/env bash
#   scripts/packaged.sh             what is installed, and the package
#   scripts/packaged.sh --short     without the package
#
# Is what `make install` and `make deb` leave on a machine right, and is it gone afterwards?
#
# The package is installed by dpkg in a mount namespace of its own, over a copy of /usr, /etc and /var that goes with it: this machine
# never sees it. The last line is `packaged: N passed, N failed, N skipped`.
set -uo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top" || exit 1

passed=0 failed=0 skipped=0
ok() { # what, command...
    local what=$1 out
    shift
    if out=$("$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$what"
        sed 's/^/    /' <<<"$out"
    fi
}
skip() { loud "SKIPPED: $*"; skipped=$((skipped + 1)); }
none() { # prints what it is given on standard input, and fails if that is anything
    ! grep .
}

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

[ -n "${TERRANE:-}" ] || build_terrane || exit 1
# So that no step builds again.
export TERRANE=$terrane
installed() {
    local man=$tree/usr/local/share/man/man8 page
    ok 'install into DESTDIR' env DESTDIR="$tree" scripts/install.sh
    ok 'the program runs' "$tree/usr/local/bin/terrane" --version
    ok 'it finds the library to preload' "$tree/usr/local/bin/terrane" run-hinted grep -q libterrane_hints /proc/self/maps
    for page in "$man"/*.8; do
        # What is missing is a date, on purpose.
        ok "mandoc: ${page##*/}" none < <(mandoc -T lint -W warning "$page" | grep -v -e 'missing date' -e 'cannot parse date')
        ok "man: ${page##*/}" none < <(MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
    done
    completes bash "$tree/usr/local/share/bash-completion/completions/terrane"
    completes zsh "$tree/usr/local/share/zsh/site-functions/_terrane"
    completes fish "$tree/usr/local/share/fish/vendor_completions.d/terrane.fish"
    ok 'install over an installation' env DESTDIR="$tree" scripts/install.sh
    ok 'uninstall' env DESTDIR="$tree" scripts/install.sh remove
    ok 'nothing is left' none < <(find "$tree" -mindepth 1)
    ok 'uninstalling twice is refused' eval "! DESTDIR='$tree' scripts/install.sh remove"
}

# Each shell is asked for what follows `terrane pool li` and `terrane fs set compressi`.
completes() {
    local shell=$1 script=$2 found
    command -v "$shell" >/dev/null || { skip "no $shell to complete in"; return; }
    found=$(PATH="$tree/usr/local/bin:$PATH" timeout 30 "$shell" -c "$(asked "$shell" "$script")" 2>&1)
    ok "$shell completes a command: $found" grep -q 'list' <<<"$found"
    ok "$shell completes a property: $found" grep -q 'compression=' <<<"$found"
}
asked() {
    case $1 in
        bash) cat <<EOT
            . $2
            ask() { COMP_WORDS=("\$@") COMP_CWORD=\$((\$# - 1)) COMP_TYPE=9; _clap_complete_terrane terrane "\${!#}"; echo "\${COMPREPLY[@]}"; }
            ask terrane pool li
            ask terrane fs set compressi
EOT
            ;;
        # Completion works in its line editor only, so it has one, on a terminal of its own.
        zsh) cat <<EOT
            zmodload zsh/zpty
            zpty shell 'PS1= zsh -f -i'
            hear() { # word: until it is said, or for 8 seconds
                local said line tries
                for tries in {1..80}; do
                    while zpty -r -t shell line; do said+=\$line; done
                    [[ \$said != *\$1* ]] || break
                    sleep 0.1
                done
                print -r -- "\$said"
            }
            zpty -w shell 'fpath=(${2%/*} \$fpath); autoload -Uz compinit; compinit -u -D; print re""ady'
            hear ready
            zpty -w -n shell \$'terrane pool li\t'
            hear list
            zpty -w -n shell \$'\C-uterrane fs set compressi\t'
            hear compression=
EOT
            ;;
        fish) cat <<EOT
            source $2
            complete -C 'terrane pool li'
            complete -C 'terrane fs set compressi'
EOT
            ;;
    esac
}

package() {
    local deb
    ok 'make deb' scripts/deb.sh
    deb=$(find dist -name 'terrane_*.deb' -newer "$tree" | head -n 1)
    [ -n "$deb" ] || return
    # No bug of Debian's asks for it, and the maintainer's address is one that cannot be.
    ok 'lintian' lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs,bogus-mail-host "$deb"
    can_mount || { skip 'no /dev/fuse: the package is built, and not used'; return; }
    unshare --mount --fork --pid --kill-child --mount-proc true 2>/dev/null || { skip 'no private mounts here: the package is not installed'; return; }
    ok 'installed, used and purged' unshare --mount --fork --pid --kill-child --mount-proc bash -c "$in_private" - "$deb" "$tree"
}
# Overlays lie in memory: where the temporary directory is an overlay itself, another cannot lie on it.
in_private='
set -e
deb=$(realpath "$1")
mount -t tmpfs tmpfs "$2"
for dir in usr etc var; do
    mkdir -p "$2/$dir" "$2/$dir.work"
    mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$2/$dir,workdir=$2/$dir.work" /$dir
done
mkdir "$2/run"
mount --bind "$2/run" /run
before=$(find /usr /etc /var/lib/dpkg/info -newermt "@0" 2>/dev/null | grep -e terrane || true)
export TERRANE_STATE_DIR=/run/terrane DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg -i "$deb"
man -w terrane >/dev/null
man terrane-pool-create | grep -q EXAMPLES
mkdir /var/tmp/mnt
terrane pool create tank /var/tmp/tank.img --size 256M
terrane mount tank /var/tmp/mnt
seq 100000 >/var/tmp/mnt/numbers
terrane run-hinted grep -q libterrane_hints /proc/self/maps
terrane umount /var/tmp/mnt
if [ -e /usr/sbin/mount.terrane ]; then
    mount -t terrane -o ro /var/tmp/tank.img /var/tmp/mnt
    seq 100000 | cmp - /var/tmp/mnt/numbers
    umount /var/tmp/mnt
fi
terrane check tank
terrane pool destroy --delete tank
# The old one is there when it is installed again.
dpkg -i "$deb"
dpkg -r terrane
dpkg -P terrane
after=$(find /usr /etc /var/lib/dpkg/info -newermt "@0" 2>/dev/null | grep -e terrane || true)
[ "$before" = "$after" ] || { echo "left behind:"; diff <(echo "$before") <(echo "$after"); exit 1; }
! dpkg -s terrane >/dev/null 2>&1
'

installed
if [ "${1:-}" = --short ]; then
    :
elif ! command -v dpkg >/dev/null || ! command -v lintian >/dev/null; then
    skip 'no dpkg and lintian here: no Debian package'
elif [ "$(id -u)" != 0 ]; then
    ok 'make deb' scripts/deb.sh
    skip 'not root: the package is built, and not installed'
else
    package
fi
say "packaged: $passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
