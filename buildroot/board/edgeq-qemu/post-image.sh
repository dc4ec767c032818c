#!/bin/sh
# An empty data partition beside the root file system; an old one is kept, with
# the jobs in it.
set -u
set -e

data=$BINARIES_DIR/data.ext4
[ -e "$data" ] || "$HOST_DIR/sbin/mkfs.ext4" -q -L data "$data" 32M
