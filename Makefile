# Everything here is one script; cargo does the building.
.PHONY: all install check test suites-full demo deps clean

all:
	cargo build --release --locked -p shale-cli -p shale-preload -p shale-capi

# make install PREFIX=/usr/local DESTDIR=: the program, the library of `shale run`, and libshale for C.
# Builds nothing, so that it can run as another user than `make`.
PREFIX = /usr/local
DESTDIR =
BUILT = $(or $(CARGO_TARGET_DIR),target)/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
ROOT = $(DESTDIR)$(PREFIX)

install:
	@for file in shale libshale_preload.so libshale.so libshale.a; do \
		test -f "$(BUILT)/$$file" || { echo "$(BUILT)/$$file is missing: run make first" >&2; exit 1; }; \
	done
	install -d "$(ROOT)/bin" "$(ROOT)/lib/shale" "$(ROOT)/lib/pkgconfig" "$(ROOT)/include"
	install -m 755 "$(BUILT)/shale" "$(ROOT)/bin/shale"
	install -m 755 "$(BUILT)/libshale_preload.so" "$(ROOT)/lib/shale/libshale_preload.so"
	install -m 755 "$(BUILT)/libshale.so" "$(ROOT)/lib/libshale.so.$(VERSION)"
	ln -sf "libshale.so.$(VERSION)" "$(ROOT)/lib/libshale.so.0"
	ln -sf libshale.so.0 "$(ROOT)/lib/libshale.so"
	install -m 644 "$(BUILT)/libshale.a" "$(ROOT)/lib/libshale.a"
	install -m 644 crates/client/capi/include/shale.h "$(ROOT)/include/shale.h"
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' crates/client/capi/shale.pc.in \
		>"$(ROOT)/lib/pkgconfig/shale.pc"
	chmod 644 "$(ROOT)/lib/pkgconfig/shale.pc"

# While a change is made: format, rules, lints, unit tests, 20 s of power cuts; ends with "N passed, N failed".
check:
	@cargo xtask check

# What has to pass before a change lands; ends with "N passed, N failed".
test:
	@scripts/test.sh

# The public suites and crash scripts in full: hours.
suites-full: all
	@scripts/install-deps.sh --suites --long
	@scripts/ci-suites.sh --full

# Shale on this machine in a few minutes: durability, speed beside the host's file system, a killed daemon.
demo:
	@scripts/demo.sh

deps:
	@scripts/install-deps.sh --suites

clean:
	cargo clean
