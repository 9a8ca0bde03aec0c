#!/usr/bin/env bash
# A Debian package in dist/: what `make install` puts into /usr, and what Debian wants to know about it.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
command -v dpkg-deb >/dev/null || die "dpkg-deb is not here: this builds packages on Debian and its kin"
scripts/setup.sh deb
version=$(awk -F'"' '/^version/ { print $2; exit }' Cargo.toml)
arch=$(dpkg --print-architecture)
maintainer='The Terrane developers <terrane@terrane.invalid>'
# The same commit makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

PREFIX=/usr MOUNTDIR=/usr/sbin ZSHDIR=/usr/share/zsh/vendor-completions DESTDIR=$stage scripts/install.sh >/dev/null
# dpkg has a list of its own, and Debian a place for licenses.
rm -r "$stage/usr/share/terrane"
doc=$stage/usr/share/doc/terrane
rm "$doc"/LICENSE-*
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$stage/usr/bin/terrane" "$stage/usr/lib/terrane/libterrane_hints.so"
gzip -9n "$stage"/usr/share/man/man8/*
mv "$doc/CHANGELOG.md" "$doc/NEWS.md"
cat >"$doc/copyright" <<EOT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: terrane

Files: *
Copyright: 2026 The Terrane developers
License: MIT or Apache-2.0

License: MIT
$(sed -n '/^Permission/,$p' LICENSE-MIT | sed 's/^$/./; s/^/ /')

License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0.
EOT
cat <<EOT | gzip -9n >"$doc/changelog.gz"
terrane ($version) unstable; urgency=medium

  * What changed is in NEWS.md.

 -- $maintainer  $(LC_ALL=C date -uR -d "@$SOURCE_DATE_EPOCH")
EOT
install -d -m 755 "$stage/usr/share/lintian/overrides" "$stage/DEBIAN"
# The oldest C library that has every symbol the program asks for.
glibc=$(objdump -T "$stage/usr/bin/terrane" "$stage/usr/lib/terrane/libterrane_hints.so" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
cat >"$stage/DEBIAN/control" <<EOT
Package: terrane
Version: $version
Architecture: $arch
Maintainer: $maintainer
Section: admin
Priority: optional
Depends: fuse3, libc6 (>= $glibc), libgcc-s1
Installed-Size: $(du -sk --apparent-size "$stage/usr" | cut -f1)
Description: copy-on-write, checksummed, compressed file system on zones
 Terrane keeps a pool of zones in a file or on a disk and mounts it through
 FUSE. Every block is checksummed, metadata is stored twice, and a crash
 leaves the state of the last commit.
EOT
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"
find "$stage" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0 touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
mkdir -p dist
dpkg-deb --root-owner-group -Zxz --build "$stage" "dist/terrane_${version}_$arch.deb" >/dev/null
say "dist/terrane_${version}_$arch.deb"
