"""Power cuts on raw flash: UBIFS on UBI on nandsim, in QEMU.

A chain as in test_cuts.py, with the same writers and the same judge; only the disk differs. nandsim keeps its flash in the
guest's memory, so a cut is taken from inside: while the writers and the service are at work everybody is stopped (SIGSTOP) at a
random moment, and the raw flash is read until two reads agree. What UBIFS had not written yet is not in it. After some of these
QEMU is killed. The next guest programs one of the reads into a fresh flash and boots from it; the others are programmed into a
second partition, mounted and recovered one after the other. These cuts fall between system calls, not within one.

A read of a writer that does not flush (`enqueue --fast`) must come out as losses, or the bench is blind.
"""

import pytest

from tests.image.test_cuts import FULL, Chain, survive

BLOCK_N = 64  # FLASH_BLOCK_N of tools/flash.sh
FLASH_BYTES = BLOCK_N * 128 * 1024
# cuts of a chain, reads of the flash before each
CUTS_N, READS_N = (10, 3) if FULL else (2, 1)
CHAINS = [(arch, number) for number in range(2 if FULL else 1) for arch in (("arm", "x86_64") if FULL else ("arm",))]


class Notes:
    """In place of a disk that remembers: a file, and the acknowledgements."""

    def __init__(self, address, told):
        self.address, self.notes = str(address), list(told)

    def note(self, mark):
        self.notes.append(mark)

    def close(self):
        pass


class Read:
    """The flash as it was at one moment. notes: what had been acknowledged by then, in its whole life."""

    def __init__(self, slot, notes, told_n):
        self.slot, self.notes, self.told_n = slot, notes, told_n
        self.end, self.safe = len(notes), slot

    def __str__(self):
        return "read %d, %d acknowledgements, %d of this boot" % (self.slot, len(self.notes), len(self.notes) - self.told_n)


class Reads:
    """What test_cuts.Chain wants to know of a log: here the reads of one boot."""

    def __init__(self, reads, notes, told_n):
        self.reads, self.all_notes, self.notes = reads, notes, notes[told_n:]

    def notes_before(self, end):
        return self.all_notes[:end]


class FlashChain(Chain):
    cuts_n, images_n = CUTS_N, READS_N

    def make_disk(self):
        path = self.folder / "fresh.img"
        with open(path, "wb") as file:
            file.truncate(FLASH_BYTES)
        return path

    def boot(self, base, step, others=()):
        """The disk of slots: what /data begins with, the others, and room for the reads of this boot."""
        self.boots_n += 1
        self.board.step(step)
        self.base, self.slots = base, self.folder / ("%d.slots" % self.boots_n)
        self.first_read, self.reads = 1 + len(others), []
        with open(self.slots, "wb") as file:
            for path in [base, *others]:
                file.write(path.read_bytes())
            file.truncate((self.first_read + self.images_n) * FLASH_BYTES)
        self.board.power_on(Notes(self.slots, self.told), "ubifs")

    def device(self, n):
        return str(1 + n)

    def read_flash(self):
        """Everybody stops; what is on the flash now, and what was acknowledged until now."""
        self.board.freeze()
        slot = self.first_read + len(self.reads)
        self.reads.append(Read(slot, list(self.board.disk.notes), len(self.told)))
        self.board.ok("flash_dump %d" % slot)

    def write(self, number):
        self.begin_to_write(number)
        for n in range(self.images_n):
            self.write_on(3, 12)
            self.read_flash()
            if n < self.images_n - 1:
                self.board.thaw()

    def cut(self):
        self.board.pull_the_plug()
        return Reads(self.reads, self.board.disk.notes, len(self.told))

    def choose(self, log):
        return log.reads

    def build(self, log, cuts):
        made = []
        with open(self.slots, "rb") as file:
            for read in cuts:
                path = self.folder / ("%d-%d.img" % (self.boots_n, read.slot))
                file.seek(read.slot * FLASH_BYTES)
                path.write_bytes(file.read(FLASH_BYTES))
                made.append((path, read))
        return made

    def canary(self):
        self.boot(self.make_disk(), "the bench proves itself: enqueue --fast")
        self.board.ok("/etc/init.d/S85edgeq stop")
        self.board.ok("write_jobs 0 '' --fast &")
        self.board.until_acks(8)
        self.read_flash()
        log = self.cut()
        return log, self.build(log, log.reads)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch,number", CHAINS)
def test_nothing_acknowledged_is_lost_on_raw_flash(arch, number, tmp_path):
    survive(FlashChain, arch, "ubifs", number, tmp_path)
