#!/bin/sh
# Gives this machine what `make test` needs: Debian packages for the commands that
# are missing, and the virtual environment .venv with the packages of the extra
# `test` of pyproject.toml. Says nothing and asks no registry when all is there.
#
#	tools/setup-test.sh [packages|venv|all]
#
# Not root and something missing: it names the packages and fails. No test is
# skipped for a missing tool.
set -u
cd "$(dirname "$0")/.." || exit 1

VENV=.venv
PATH=$PATH:/usr/sbin:/sbin
export PATH

fail() {
	echo "setup-test: $*" >&2
	exit 1
}

# attempt N COMMAND...: again after a pause, N times in all. The registries and
# dpkg's lock are busy now and then.
attempt() {
	tries=$1
	shift
	while :; do
		"$@" && return 0
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || return 1
		echo "setup-test: failed, trying again: $*" >&2
		sleep 5
	done
}

# A command each, and the Debian package that brings it.
TOOLS="busybox:busybox-static strace:strace shellcheck:shellcheck mksquashfs:squashfs-tools
	dash:dash flock:util-linux setsid:util-linux unshare:util-linux mount:mount
	tmux:tmux mandoc:mandoc redis-server:redis-server redis-cli:redis-tools supervisord:supervisor systemd-analyze:systemd ip:iproute2 openssl:openssl
	mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.f2fs:f2fs-tools modprobe:kmod ps:procps setpriv:util-linux nsenter:util-linux chroot:coreutils
	debugfs:e2fsprogs qemu-system-x86_64:qemu-system-x86 qemu-system-arm:qemu-system-arm"

missing_packages() {
	for pair in $TOOLS; do
		command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair#*:}"
	done
	if python=$(find_python); then
		"$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
	else
		printf '%s\n' python3 python3-venv
	fi
}

# The interpreter of the tests: the first that is new enough.
find_python() {
	for python in "${PYTHON:-python3}" python3 /usr/bin/python3; do
		if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
			command -v "$python"
			return 0
		fi
	done
	return 1
}

install_packages() {
	packages=$(missing_packages | sort -u | tr '\n' ' ')
	[ -n "$packages" ] || return 0
	[ "$(id -u)" -eq 0 ] || fail "these Debian packages are missing, and only root can install them: $packages"
	command -v apt-get >/dev/null || fail "there is no apt-get here to install: $packages"
	echo "setup-test: installing $packages"
	export DEBIAN_FRONTEND=noninteractive
	attempt 3 apt-get -q -o DPkg::Lock::Timeout=300 update || fail "apt-get update failed"
	# shellcheck disable=SC2086 # a list of words
	attempt 3 apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages ||
		fail "apt-get could not install: $packages"
	packages=$(missing_packages | sort -u | tr '\n' ' ')
	[ -z "$packages" ] || fail "still missing after the installation: $packages"
}

requirements() {
	"$python" -c 'import tomllib
with open("pyproject.toml", "rb") as f:
    print("\n".join(tomllib.load(f)["project"]["optional-dependencies"]["test"]))'
}

# The stamp is the list that was installed: the same list again needs no network.
make_venv() {
	python=$(find_python) || fail "no Python 3.11 or newer here"
	wanted=$(requirements) || fail "cannot read the extra 'test' of pyproject.toml"
	if [ -f "$VENV/installed" ] && [ "$(cat "$VENV/installed")" = "$wanted" ] &&
		"$VENV/bin/python" -c 'import pytest' 2>/dev/null; then
		return 0
	fi
	echo "setup-test: making $VENV with $python"
	rm -rf "$VENV"
	"$python" -m venv "$VENV" || fail "cannot make $VENV"
	echo "$wanted" >"$VENV/wanted"
	attempt 3 "$VENV/bin/python" -m pip install -q --disable-pip-version-check -r "$VENV/wanted" ||
		fail "pip could not install: $(echo "$wanted" | tr '\n' ' ')"
	mv "$VENV/wanted" "$VENV/installed"
}

case ${1:-all} in
packages) install_packages ;;
venv) make_venv ;;
all) install_packages && make_venv ;;
*) fail "usage: $0 [packages|venv|all]" ;;
esac
