"""What edgeq costs, measured on the machine this runs on, beside the bare interpreter. For tools/footprint.py.

    python3 -IS probe.py ROOT RAM PYZ WRAPPER JOBS WAITING PAIRS BURSTS SHELL...

Only C modules are imported, so that it runs on every board: under QEMU it is the same program as here. ROOT is an empty folder for
spool and handlers, RAM one on a tmpfs, where a board has /run; SHELL... runs the wrapper. Prints one Python dictionary.
"""

import posix
import sys
from time import sleep, monotonic

LIMIT_S = 900
PYTHON = posix.readlink("/proc/self/exe")


def read(path):
    fd = posix.open(path, posix.O_RDONLY)
    try:
        data = b""
        while part := posix.read(fd, 65536):
            data += part
        return data.decode()
    finally:
        posix.close(fd)


def write(path, text, mode=0o644):
    fd = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC, mode)
    posix.write(fd, text.encode())
    posix.close(fd)


def spawn(command, environ, stdin="/dev/null", log="/dev/null"):
    actions = [(posix.POSIX_SPAWN_OPEN, 0, stdin, posix.O_RDONLY, 0)]
    actions += [(posix.POSIX_SPAWN_OPEN, fd, log, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o644) for fd in (1, 2)]
    return posix.posix_spawn(command[0], command, environ, file_actions=actions)


def cpu_ms(command, environ, wanted=0, **more):
    """User and system time of one run."""
    _, status, usage = posix.wait4(spawn(command, environ, **more), 0)
    if posix.waitstatus_to_exitcode(status) != wanted:
        raise SystemExit("probe: %s: exit %d" % (command, posix.waitstatus_to_exitcode(status)))
    return (usage.ru_utime + usage.ru_stime) * 1000


def median(values):
    values = sorted(values)
    return (values[len(values) // 2] + values[(len(values) - 1) // 2]) / 2


def memory(pid):
    """{dirty, rss} in KiB."""
    found = {}
    for line in read("/proc/%d/smaps_rollup" % pid).splitlines()[1:]:
        key, value = line.split()[:2]
        found[key] = int(value)
    return {"dirty": found["Private_Dirty:"], "rss": found["Rss:"]}


def stat(pid):
    return read("/proc/%d/stat" % pid).rpartition(")")[2].split()


def busy_us(pid):
    """Time on the processor of a process alone, without its children."""
    return int(read("/proc/%d/schedstat" % pid).split()[0]) / 1000


def wait_for(question, what):
    end = monotonic() + LIMIT_S
    while not question():
        if monotonic() > end:
            raise SystemExit("probe: waited in vain: " + what)
        sleep(0.1)


class Place:
    def __init__(self, root, ram, pyz, wrapper):
        self.root, self.ram, self.pyz, self.wrapper = root, ram, pyz, wrapper
        self.environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "EDGEQ_PYTHON": PYTHON, "EDGEQ_CONF": root + "/edgeq.conf",
                        "EDGEQ_PYZ": pyz}
        posix.mkdir(root + "/handlers")
        write(root + "/handlers/noop", "#!/bin/true\n", 0o755)
        self.configure("a")

    def configure(self, name, **keys):
        """Another queue, empty, and from now on the one that is meant."""
        self.q, self.r = "%s/spool/%s" % (self.root, name), "%s/%s" % (self.ram, name)
        keys.update(QUEUE=name, SPOOL=self.root + "/spool", RUN_DIR=self.ram, HANDLERS=self.root + "/handlers",
                    MIN_FREE_KB=16, MIN_FREE_INODES=0, BALLAST_KB=0)
        write(self.root + "/edgeq.conf", "".join("%s=%s\n" % pair for pair in keys.items()))

    def work(self, *words):
        return ["/bin/sh", self.pyz, "work", *words]

    def edgeq(self, *words):
        return [*self.wrapper, *words]

    def sleeper(self):
        """Pid of who sleeps at the queue's FIFO, or 0."""
        try:
            names = posix.listdir(self.r + "/wake")
        except FileNotFoundError:
            return 0
        found = [int(name.split("-")[0]) for name in names if name.endswith(".asleep")]
        return found[0] if len(found) == 1 and stat(found[0])[0] == "S" else 0

    def is_drained(self):
        folders = (self.q + "/incoming", self.q + "/processing")
        return not [name for folder in folders for name in posix.listdir(folder) if name[0] != "."]

    def start(self):
        pid = spawn(self.work(), self.environ, log=self.root + "/log")
        wait_for(lambda: self.sleeper() == pid, "the worker sleeps")
        return pid

    def stop(self, pid):
        posix.kill(pid, 15)
        if posix.waitpid(pid, 0)[1]:
            raise SystemExit("probe: the worker or the guard did not end well")


def measure_start(place, pairs):
    bare, ours = [PYTHON, "-IS", "-c", "pass"], place.work("--once")
    cpu_ms(ours, place.environ)
    runs = [(cpu_ms(bare, place.environ), cpu_ms(ours, place.environ)) for _ in range(pairs + 1)][1:]
    return {"bare_ms": median([b for b, _ in runs]), "ms": median([o for _, o in runs]),
            "ratio": median([o / b for b, o in runs])}


def measure_bare():
    reader, writer = posix.pipe2(posix.O_CLOEXEC)
    actions = [(posix.POSIX_SPAWN_DUP2, reader, 0)]
    pid = posix.posix_spawn(PYTHON, [PYTHON, "-IS", "-c", "import posix; posix.read(0, 1)"], {}, file_actions=actions)
    wait_for(lambda: stat(pid)[0] == "S" and "pipe" in read("/proc/%d/wchan" % pid), "the interpreter sleeps")
    found = memory(pid)
    posix.close(writer)
    posix.waitpid(pid, 0)
    return found


def put_jobs(place, type, jobs):
    """So many waiting jobs, by hand: what it costs to queue them is not the worker's."""
    for n in range(jobs):
        write("%s/incoming/5.%016d.0.0.%s.%s%d.json" % (place.q, 1753000000000000 + n, type, type, n),
              '{"id":"%s%d","type":"%s","created_at":1753000000,"payload":{}}\n' % (type, n, type))


def measure_jobs(place, jobs):
    """{idle, after, cpu_us a job}: the worker's own; what the handlers cost is not in it."""
    place.configure("jobs")
    pid = place.start()
    idle = memory(pid)
    put_jobs(place, "noop", jobs)
    began_us, begun = busy_us(pid), monotonic()
    cpu_ms(place.edgeq("enqueue", "noop"), place.environ)  # wakes it
    wait_for(lambda: place.is_drained() and place.sleeper() == pid, "the jobs are done")
    found = {"idle": idle, "after": memory(pid), "cpu_us": (busy_us(pid) - began_us) / (jobs + 1),
             "jobs_per_s": jobs / (monotonic() - begun)}
    place.stop(pid)
    return found


def measure_waiting(place, waiting):
    """A worker that finds so many jobs ready, of a type whose handler is missing."""
    place.configure("full", MAX_JOBS=10 * waiting)
    cpu_ms(place.work("--once"), place.environ)
    put_jobs(place, "none", waiting)
    pid = place.start()
    wait_for(lambda: "held=%d" % waiting in read(place.r + "/status") and place.sleeper() == pid, "all of them are counted")
    found = memory(pid)
    place.stop(pid)
    return found


def measure_on_demand(place, bursts):
    """The guard alone, and what a burst of one job costs: a start of Python, the job, the way out."""
    place.configure("idle", LINGER_S=1, SAFETY_SCAN_S=600)
    pid = spawn(place.edgeq("guard"), place.environ, log=place.root + "/log")
    wait_for(lambda: place.sleeper() == pid, "the guard waits alone")
    found, before = memory(pid), stat(pid)
    for _ in range(bursts):
        cpu_ms(place.edgeq("enqueue", "noop"), place.environ)
        wait_for(lambda: place.is_drained() and place.sleeper() == pid, "the worker has come and gone")
    after = stat(pid)
    ticks = sum(int(after[n]) - int(before[n]) for n in (11, 12, 13, 14))
    place.stop(pid)
    return dict(found, burst_ms=ticks * 10 / bursts)


def main(argv):
    root, ram, pyz = argv[:3]
    jobs, waiting, pairs, bursts = map(int, argv[4:8])
    place = Place(root, ram, pyz, argv[8:] + [argv[3]])
    # in this order: what takes longest is last
    print({"jobs_n": jobs, "waiting_n": waiting, "start": measure_start(place, pairs), "bare": measure_bare(),
           "on_demand": measure_on_demand(place, bursts), "jobs": measure_jobs(place, jobs),
           "waiting": measure_waiting(place, waiting)})


if __name__ == "__main__":
    main(sys.argv[1:])
