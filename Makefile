# Everything here is one script; cargo does the building.
.PHONY: all install uninstall deb check test suites-full demo deps clean

all:
	cargo build --release --locked -p shale-cli -p shale-preload -p shale-capi

# make install PREFIX=/usr/local DESTDIR=: the program, the library of `shale run`, libshale for C, the manual, completions,
# the unit, and what mount(8) calls; `make uninstall` with the same settings takes all of it away again.
# Builds nothing, so that it can run as another user than `make`. What else can be set stands in scripts/install.sh.
PREFIX = /usr/local
DESTDIR =
BUILT = $(or $(CARGO_TARGET_DIR),target)/release
export PREFIX DESTDIR BUILT

install uninstall:
	@scripts/install.sh $@

# Debian packages shale, libshale0 and libshale-dev, in target/package.
deb: all
	@scripts/make-deb.sh

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
