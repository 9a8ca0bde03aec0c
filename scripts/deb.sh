#!/usr/bin/env bash
# A Debian package of the program and its pages, in dist/.
set -euo pipefail
. "$(dirname "$0")/pool.sh"
cd "$top"
command -v dpkg-deb >/dev/null || die "dpkg-deb is not here: this builds packages on Debian and its kin"
build_terrane
version=$(awk -F'"' '/^version/ { print $2; exit }' Cargo.toml)
arch=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
install -D -m 755 -s "$terrane" "$stage/usr/bin/terrane"
doc=$stage/usr/share/doc/terrane
install -d "$doc"
install -m 644 README.md SEMANTICS.md FORMAT.md DESIGN.md CHANGELOG.md "$doc/"
cat LICENSE-MIT LICENSE-APACHE >"$doc/copyright"
install -d "$stage/DEBIAN"
# The oldest C library that has every symbol the program asks for.
glibc=$(objdump -T "$stage/usr/bin/terrane" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1 || true)
cat >"$stage/DEBIAN/control" <<EOT
Package: terrane
Version: $version
Architecture: $arch
Maintainer: The Terrane developers <terrane@terrane.invalid>
Section: admin
Priority: optional
Depends: libc6${glibc:+ (>= $glibc)}, libgcc-s1
Recommends: fuse3
Installed-Size: $(du -sk "$stage/usr" | cut -f1)
Description: copy-on-write, checksummed, compressed file system on zones
 Terrane keeps a pool of zones in a file or on a disk and mounts it through
 FUSE. Every block is checksummed, metadata is stored twice, and a crash
 leaves the state of the last commit.
EOT
mkdir -p dist
dpkg-deb --root-owner-group --build "$stage" "dist/terrane_${version}_$arch.deb" >/dev/null
say "dist/terrane_${version}_$arch.deb"
