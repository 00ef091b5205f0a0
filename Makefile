# Everything here is one script; cargo does the building.
.PHONY: all test suites-full demo deps clean

all:
	cargo build --release --locked -p shale-cli -p shale-preload

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
