#!/bin/sh
# Raw flash for a guest of tests/image: two partitions of nandsim, UBI and UBIFS on them. The console sources it, and stays as it is.
#
# nandsim keeps its flash in the guest's memory. What a cut leaves of it is therefore read off while everybody stands still
# (`freeze`), until two reads agree, and goes to a slot of the disk /dev/vdc; the guest is killed, the next one programs a slot
# into a fresh flash and attaches it. A frozen program stands between two system calls: that is where these cuts fall.
#
#	slot 0			what /data begins with; no UBI in it: a fresh flash
#	slot 1, 2, ...		others to be looked at (flash_open), or dumps taken in this boot (flash_dump)

FLASH_BLOCK_N=64 # erase blocks of 128 KiB a partition
FLASH_DISK=/dev/vdc
FLASH_TOOLS=/mnt/bin
FLASH_TMP=/tmp/flash

# flash_load: the modules, and the flash itself: 2 KiB pages.
flash_load() {
	while read -r flash_module; do
		insmod "/mnt/modules/$flash_module" || return 1
	done </mnt/modules/order
	insmod /mnt/modules/nandsim.ko first_id_byte=0x20 second_id_byte=0xa2 third_id_byte=0x00 fourth_id_byte=0x15 \
		parts=$FLASH_BLOCK_N,$FLASH_BLOCK_N
}

flash_slot() { # SLOT: its bytes
	dd if=$FLASH_DISK bs=128k skip=$(($1 * FLASH_BLOCK_N)) count=$FLASH_BLOCK_N 2>/dev/null
}

flash_sum() {
	md5sum | cut -d' ' -f1
}

# flash_open SLOT PARTITION FOLDER: program the slot into the erased partition, mount what is in it.
flash_open() {
	flash_slot "$1" >$FLASH_TMP || return 1
	if [ "$(head -c 4 $FLASH_TMP)" = 'UBI#' ]; then
		$FLASH_TOOLS/flash_erase -q "/dev/mtd$2" 0 0 || return 1
		$FLASH_TOOLS/nandwrite -q -k "/dev/mtd$2" $FLASH_TMP || return 1
		[ "$(flash_sum <"/dev/mtd$2")" = "$(flash_sum <$FLASH_TMP)" ] || return 1
		$FLASH_TOOLS/ubiattach -m "$2" -d "$2" >/dev/null || return 1
	else
		$FLASH_TOOLS/ubiattach -m "$2" -d "$2" >/dev/null || return 1
		$FLASH_TOOLS/ubimkvol "/dev/ubi$2" -N data -m >/dev/null || return 1
	fi
	rm $FLASH_TMP
	mount -t ubifs "ubi$2:data" "$3"
}

flash_close() { # PARTITION FOLDER
	umount "$2" && $FLASH_TOOLS/ubidetach -d "$1"
}

# flash_dump SLOT: the flash below /data, as it is while everybody but this shell is stopped.
flash_dump() {
	until cat /dev/mtd0 >$FLASH_TMP && [ "$(flash_sum </dev/mtd0)" = "$(flash_sum <$FLASH_TMP)" ]; do :; done
	dd if=$FLASH_TMP of=$FLASH_DISK bs=128k seek=$(($1 * FLASH_BLOCK_N)) conv=fsync,notrunc 2>/dev/null || return 1
	rm $FLASH_TMP
}
