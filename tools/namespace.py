"""Runs a command as process 1 of a user, mount and pid namespace in which every user and group keeps its number.

    python3 tools/namespace.py COMMAND...        as root

`unshare --user` can map one user only without the package uidmap. The user namespace is for binfmt_misc: it has one of its
own there, so programs of another machine run under qemu-user and nothing is registered on this one (Linux 6.7 and newer).
The command dies with this process.
"""

import ctypes
import os
import signal
import sys

NEWNS, NEWUSER, NEWPID = 0x00020000, 0x10000000, 0x20000000
PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        error = ctypes.get_errno()
        raise SystemExit("namespace: %s: %s" % (name, os.strerror(error)))


def map_all(pid, reader):
    """In a child that stays outside: once `pid` is in its namespace, everybody is who he was."""
    os.read(reader, 1)
    for name in ("uid_map", "gid_map"):
        with open("/proc/%d/%s" % (pid, name), "w") as f:
            f.write("0 0 4294967295")


def main(command):
    reader, writer = os.pipe()
    helper = os.fork()
    if helper == 0:
        map_all(os.getppid(), reader)
        os._exit(0)
    call("unshare", NEWUSER | NEWNS | NEWPID)
    os.write(writer, b"x")
    if os.waitpid(helper, 0)[1]:
        raise SystemExit("namespace: cannot map the users: not root?")
    first = os.fork()
    if first == 0:
        call("prctl", PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
