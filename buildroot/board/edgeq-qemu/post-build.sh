#!/bin/sh
# The data partition: the second disk, mounted on /data.
set -u
set -e

mkdir -p "$TARGET_DIR/data"
grep -q ' /data ' "$TARGET_DIR/etc/fstab" ||
	echo '/dev/vdb	/data	ext4	defaults	0	0' >>"$TARGET_DIR/etc/fstab"
