"""A disk that remembers, for QEMU: one export over a Unix socket, every write and flush logged in order with the bench's marks.

The log is tests/crash's (device.ENTRY), so tests/crash/images.py builds the crash images from it. An entry is in the log before
the guest hears that it is done; so a mark that is noted when the guest's console told of an acknowledgement stands behind every
flush that returned before it. Nothing is ever dropped here: what a cut drops is decided when the image is built.

The protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md, fixed newstyle, simple replies, one connection.
"""

import os
import socket
import struct
import threading

from tests.crash.device import ENTRY, FLUSHED, NOTED, WROTE

MAGIC, OPTION, OPTION_REPLY, REQUEST, REPLY = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9, 0x25609513, 0x67446698
FIXED_NEWSTYLE, NO_ZEROES = 1, 2
OPT_EXPORT_NAME, OPT_ABORT, OPT_INFO, OPT_GO = 1, 2, 6, 7
REP_ACK, REP_INFO, REP_UNSUPPORTED = 1, 3, 0x80000001
CMD_READ, CMD_WRITE, CMD_DISC, CMD_FLUSH = range(4)
HAS_FLAGS, SEND_FLUSH, SEND_FUA = 1, 4, 8
FUA, EINVAL = 1, 22


class Gone(Exception):
    """The other side hung up."""


class Disk:
    """Serves a copy of `base` on the socket `path`, to one client, in a thread; the log goes to `log`."""

    def __init__(self, base, path, log):
        with open(base, "rb") as file:
            self.data = bytearray(file.read())
        self.log, self.lock = open(log, "wb"), threading.Lock()
        self.error = None
        self.path = str(path)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.path)
        self.server.listen(1)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def address(self):
        """What QEMU calls it."""
        return "nbd:unix:%s" % self.path

    def note(self, mark):
        self._append(NOTED, 0, mark)

    def close(self):
        """When the client is gone (or never came): all that it sent is in the log."""
        if self.log.closed:
            return
        try:
            self.server.shutdown(socket.SHUT_RDWR)  # wakes accept()
        except OSError:
            pass
        self.thread.join(60)
        assert not self.thread.is_alive(), "the NBD client is still there"
        self.server.close()
        os.unlink(self.path)
        self.log.close()
        if self.error:
            raise self.error

    def _append(self, kind, offset, data=b""):
        with self.lock:
            self.log.write(ENTRY.pack(kind, len(data), offset) + data)

    def _run(self):
        try:
            self.client, _ = self.server.accept()
            with self.client:
                if self._shake_hands():
                    while self._serve():
                        pass
        except (Gone, OSError):
            pass  # QEMU was killed: a request that came in half never reached the disk
        except Exception as error:  # told by close()
            self.error = error

    def _take(self, size):
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            took = self.client.recv_into(view[at:])
            if not took:
                raise Gone
            at += took
        return bytes(data)

    def _shake_hands(self):
        """True: the client wants to transmit."""
        flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA
        self.client.sendall(struct.pack(">QQH", MAGIC, OPTION, FIXED_NEWSTYLE | NO_ZEROES))
        client_flags, = struct.unpack(">I", self._take(4))
        while True:
            magic, option, size = struct.unpack(">QII", self._take(16))
            assert magic == OPTION, "not an NBD option"
            self._take(size)
            if option == OPT_EXPORT_NAME:
                self.client.sendall(struct.pack(">QH", len(self.data), flags) + bytes(0 if client_flags & NO_ZEROES else 124))
                return True
            if option in (OPT_INFO, OPT_GO):
                self._answer(option, REP_INFO, struct.pack(">HQH", 0, len(self.data), flags))
            self._answer(option, REP_ACK if option in (OPT_INFO, OPT_GO, OPT_ABORT) else REP_UNSUPPORTED)
            if option == OPT_GO:
                return True
            if option == OPT_ABORT:
                return False

    def _answer(self, option, kind, data=b""):
        self.client.sendall(struct.pack(">QIII", OPTION_REPLY, option, kind, len(data)) + data)

    def _serve(self):
        """One request; False: the client takes its leave."""
        magic, flags, command, handle, offset, size = struct.unpack(">IHHQQI", self._take(28))
        assert magic == REQUEST, "not an NBD request"
        data, error = b"", 0
        if command == CMD_DISC:
            return False
        if command == CMD_WRITE:
            written = self._take(size)
            assert offset + size <= len(self.data), "a write beyond the end"
            self.data[offset:offset + size] = written
            self._append(WROTE, offset, written)
            if flags & FUA:
                self._append(FLUSHED, 0)  # it promises less: this write only. What is built is a state that can be
        elif command == CMD_FLUSH:
            self._append(FLUSHED, 0)
        elif command == CMD_READ:
            data = self.data[offset:offset + size]
        else:
            error = EINVAL
        self.client.sendall(struct.pack(">IIQ", REPLY, error, handle) + data)
        return True
