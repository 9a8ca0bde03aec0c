#!/usr/bin/env bash
# Puts the program, its manual pages, completions and systemd units into PREFIX, or takes them away again.
#
#   scripts/install.sh              PREFIX=/usr/local, DESTDIR= (for packages), MOUNTDIR= (for mount.terrane)
#   scripts/install.sh remove       removes what the same PREFIX and DESTDIR got, and nothing else
#
# What was put where is written down in PREFIX/share/terrane/installed, so that also a later version removes all of it.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"

prefix=${PREFIX:-/usr/local}
dest=${DESTDIR:-}
case $prefix in /*) ;; *) die "PREFIX should be an absolute path, found $prefix" ;; esac
# mount(8) looks for its helpers in /sbin and nowhere else. On most systems that is another name of /usr/sbin.
case $prefix in
    /usr | /usr/local) if [ -L /sbin ]; then sbin=/usr/sbin; else sbin=/sbin; fi ;;
    *) sbin=$prefix/sbin ;;
esac
mountdir=${MOUNTDIR:-$sbin}
list=$dest$prefix/share/terrane/installed

remove() {
    [ -e "$list" ] || die "nothing of ours is installed in $dest$prefix: there is no $list"
    # Files first, then the directories that had to be made, deepest first.
    awk '/^f /' "$list" | cut -c 3- | while IFS= read -r path; do rm -f -- "$dest$path"; done
    awk '/^d /' "$list" | cut -c 3- | sort -r >"$stage/dirs"
    rm -f -- "$list"
    while IFS= read -r path; do rmdir -- "$dest$path" 2>/dev/null || true; done <"$stage/dirs"
}

made=()
directory() { # makes it, and remembers what was not there
    local path=$1
    [ -d "$dest$path" ] && return
    [ "$path" = / ] || directory "$(dirname "$path")"
    mkdir -m 755 "$dest$path" || die "$dest$path cannot be made; become root, or choose another PREFIX"
    made+=("d $path")
}
file() { # mode, source, target
    directory "$(dirname "$3")"
    install -m "$1" "$2" "$dest$3" || die "$dest$3 cannot be written; become root, or choose another PREFIX"
    made+=("f $3")
}
link() { # to, target
    directory "$(dirname "$2")"
    ln -sfn "$1" "$dest$2" || die "$dest$2 cannot be written; become root, or choose another MOUNTDIR"
    made+=("f $2")
}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
if [ "${1:-}" = remove ]; then
    remove
    say "removed from $dest$prefix; pools are left alone"
    exit
fi

# Root by way of sudo often has no cargo, and should own nothing in target/. TERRANE names another program to install.
if [ ! -x "$terrane" ] || { [ -z "${TERRANE:-}" ] && [ -z "${SUDO_USER:-}" ] && command -v cargo >/dev/null; }; then
    scripts/setup.sh build
    build_terrane
fi
hints=$(dirname "$terrane")/libterrane_hints.so
[ -e "$hints" ] || die "$hints is missing: cargo build --release -p terrane-preload makes it"
"$terrane" generate man "$stage/man"
for shell in bash zsh fish; do "$terrane" generate completions "$shell" >"$stage/$shell"; done

[ -n "$dest" ] && mkdir -p "$dest"
# An older installation may have had files that this one has not.
[ ! -e "$list" ] || remove
file 755 "$terrane" "$prefix/bin/terrane"
# `terrane run-hinted` looks for it there.
file 644 "$hints" "$prefix/lib/terrane/libterrane_hints.so"
to=$prefix/bin/terrane
[ "$mountdir" != "$prefix/sbin" ] || to=../bin/terrane
for name in mount.terrane mount.fuse.terrane fsck.terrane; do link "$to" "$mountdir/$name"; done
link ../../../bin/terrane "$prefix/lib/systemd/system-generators/terrane-generator"
for page in "$stage"/man/*.8; do file 644 "$page" "$prefix/share/man/man8/${page##*/}"; done
file 644 "$stage/bash" "$prefix/share/bash-completion/completions/terrane"
file 644 "$stage/zsh" "${ZSHDIR:-$prefix/share/zsh/site-functions}/_terrane"
file 644 "$stage/fish" "$prefix/share/fish/vendor_completions.d/terrane.fish"
for unit in packaging/systemd/*; do
    [ -e "$unit" ] || continue
    sed "s|/usr/bin/terrane|$prefix/bin/terrane|g" "$unit" >"$stage/unit"
    file 644 "$stage/unit" "$prefix/lib/systemd/system/${unit##*/}"
done
for page in README SEMANTICS FORMAT DESIGN CHANGELOG; do file 644 $page.md "$prefix/share/doc/terrane/$page.md"; done
for page in LICENSE-MIT LICENSE-APACHE; do file 644 $page "$prefix/share/doc/terrane/$page"; done
directory "$(dirname "${list#"$dest"}")"
printf '%s\n' "${made[@]}" >"$list"
chmod 644 "$list"
say "installed in $dest$prefix; \`make uninstall\` takes it away again"
[ "$mountdir" = /sbin ] || [ "$mountdir" -ef /sbin ] || [ -n "$dest" ] ||
    say "mount -t terrane needs mount.terrane in /sbin; it is in $mountdir"
