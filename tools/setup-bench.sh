#!/bin/sh
# Gives this machine the peers of `make bench`: Debian packages, and a virtual environment in build/peers. Says nothing and
# asks no registry when all is there; fails loudly when one is missing and cannot be installed.
set -eu
cd "$(dirname "$0")/.."

VENV=build/peers
PEERS="persist-queue==1.1.0 huey==3.5.4 dirq==1.8 redis==8.1.0 rq==3.0.0"
PATH=$PATH:/usr/sbin:/sbin
export PATH

mkdir -p build
exec 9>build/setup-bench.lock # one at a time: two test processes may ask at once
flock 9
packages=''
for pair in beanstalkd:beanstalkd nq:nq busybox:busybox-static mkfs.ext4:e2fsprogs losetup:mount redis-server:redis-server; do
	command -v "${pair%%:*}" >/dev/null 2>&1 || packages="$packages ${pair#*:}"
done
if [ -n "$packages" ]; then
	if [ "$(id -u)" -ne 0 ]; then
		echo "setup-bench: these Debian packages are missing, and only root can install them:$packages" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -o DPkg::Lock::Timeout=300 update >&2
	# shellcheck disable=SC2086 # a list of words
	apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages >&2
fi
[ -f "$VENV/installed" ] && [ "$(cat "$VENV/installed")" = "$PEERS" ] && exit 0
rm -rf "$VENV"
"${PYTHON:-python3}" -m venv "$VENV"
# shellcheck disable=SC2086
"$VENV/bin/python" -m pip install -q --disable-pip-version-check $PEERS >&2
echo "$PEERS" >"$VENV/installed"
