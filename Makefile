# What can be done here. `make` lists it; README.md has the same list, and a test compares the two.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
SEED ?=
export PREFIX DESTDIR

.PHONY: help demo demo-clean test check soak replay test-zoned bench-peers bench-programs bench-snapshots bench-sync bench-object bench-zoned bench-compression diagram build install uninstall deb

help:
	@sed -n 's/^\([a-z-]*\):.* ## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || grep ' ## ' $(MAKEFILE_LIST)

demo: ## a pool with a real source tree in it, mounted under ./demo
	@scripts/demo.sh

demo-clean: ## unmount and remove the demo
	@scripts/demo.sh clean

test: ## everything, with a summary at the end
	@scripts/test.sh

check: ## formatting, lints and the quick tests, before each commit
	@scripts/check.sh

soak: ## all seeds and corruptions, and the long suites on a real mount: hours
	@scripts/soak.sh

replay: ## one seed of the simulator again: make replay SEED=113
	@scripts/replay.sh "$(SEED)"

test-zoned: ## on host-managed zoned drives of all kinds: mounted suite, a nearly full drive, power cuts
	@scripts/zoned.sh --full

bench-peers: ## every workload beside ext4, xfs, btrfs, zfs-fuse and the null server; writes docs/benchmarks.md
	@scripts/bench-peers.sh

bench-programs: ## tar, cp, git, cargo, npm and rm beside ext4, btrfs, zfs-fuse and the null server, with requests and processor time
	@scripts/bench-programs.sh

bench-snapshots: ## taking, holding and destroying snapshots beside btrfs and zfs-fuse
	@scripts/bench-snapshots.sh

bench-sync: ## fsync, databases, git and dpkg beside ext4, xfs, btrfs and zfs-fuse, on a file, a loop device and in memory
	@scripts/bench-sync.sh

bench-object: ## a pool in a server for S3, with latency added, beside the store itself and s3fs
	@scripts/bench-object.sh

bench-zoned: ## nearly full zoned drives beside XFS, f2fs and btrfs, on machines that $ZONED_RUNNER makes
	@scripts/bench-zoned.sh

bench-compression: ## every algorithm beside ext4, btrfs and zfs-fuse, and the codecs alone; writes a plot
	@scripts/bench-compression.sh

diagram: ## docs/crates.svg anew, from the table of crates in DESIGN.md
	@TERRANE_DIAGRAM=write $(CARGO) test -q -p terrane-repo-tests --test all diagram::

build: ## the program, at target/release/terrane, and libterrane_hints.so
	@scripts/setup.sh build
	@$(CARGO) build --release -p terrane-cli -p terrane-preload

install: ## program, manual pages, completions and units into PREFIX (/usr/local)
	@scripts/install.sh

uninstall: ## remove what install put into the same PREFIX
	@scripts/install.sh remove

deb: ## a Debian package in dist/
	@scripts/deb.sh
