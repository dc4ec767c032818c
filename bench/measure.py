"""The measurements: each returns {row: {column: number}}, rows named after contestants.

CPU is that of the process that works, of the daemon it talks to and, where commands are run, of these; the kernel's own
threads are left out. On a shared machine times lie by a factor of two from run to run, so every CPU figure is the least of a
few rounds (in the shell: the median over pairs with the bare shell), rounds of all contestants alternate, and the table gives
ratios beside microseconds. KiB and flushes repeat within 2 %.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from bench import fleet, peers
from bench.flash import Flash
from bench.ours import PAYLOAD, ROOT, WRAPPER, Queue
from bench.slow import cost_on

EDGEQ, EDGEQ_SQLITE = "edgeq spool", "edgeq sqlite"
WINDOW_MS = 10000  # the default SYNC_WINDOW_MS: with one job a second ten completions ride together


class Size:
    """How much is measured. dt_s: between two jobs of `one a second`; 1: real time, less: everything by time scaled along."""

    def __init__(self, is_quick):
        self.is_quick = is_quick
        self.dt_s, self.seconds_n = (0.05, 20) if is_quick else (1.0, 60)
        self.singles_n, self.burst_n, self.rounds = (100, 1000, 3) if is_quick else (300, 1000, 5)
        self.shells_n, self.children_n = (30, 200) if is_quick else (200, 1000)
        self.depths = (1000, 10000) if is_quick else (1000, 10000, 30000)
        self.idle_scans, self.scan_s = 2, (1 if is_quick else 10)


def cpu_ns(pid):
    """CPU of a live process (one thread; its children not counted)."""
    if not pid:
        return 0
    with open("/proc/%d/schedstat" % pid) as stat:
        return int(stat.read().split()[0])


def timed(work, server=0):
    """CPU of `work()` in microseconds, that of the daemon `server` included."""
    before, others = time.process_time(), cpu_ns(server)
    work()
    return (time.process_time() - before) * 1e6 + (cpu_ns(server) - others) / 1e3


def children_cpu(work):
    """CPU in microseconds of the processes that `work()` started and waited for."""
    before = _children_us()
    work()
    return _children_us() - before


def _children_us():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * 1e6


# --- one job a second: enqueue to done -----------------------------------------------------------------------------------


def one_a_second(size):
    rows = {EDGEQ: _one_a_second_ours(size), EDGEQ_SQLITE: _one_a_second_sqlite(size)}
    for peer_class in peers.LIBRARIES:
        with Flash() as flash:
            peer = peer_class(flash.folder("peer"))
            peer.put(2), peer.step(), peer.step()
            before = flash.start()
            for _ in _beats(size):
                peer.put(1)
                peer.step()
            rows[peer.name] = _with_syncs(flash.since(before).per(size.seconds_n))
            peer.close()
    with Flash() as flash:
        peer = peers.Nq(flash.folder("nq"))
        before = flash.start()
        for _ in _beats(size):
            peer.put(1)
        peer.close()
        rows[peer.name] = _with_syncs(flash.since(before).per(size.seconds_n))
    return rows


def _one_a_second_ours(size):
    """The shell wrapper enqueues, the shipped worker runs /bin/true; every flush its window brings is waited for."""
    with Flash() as flash:
        queue = Queue(flash.path, SYNC_WINDOW_MS=int(WINDOW_MS * size.dt_s))
        try:
            queue.start_worker()
            queue.shell("enqueue", "job", "{}")
            queue.await_("the first job's end", queue.is_drained)
            before = flash.start()
            for _ in _beats(size):
                queue.shell("enqueue", "job", PAYLOAD.decode())
            queue.await_("the last job's end", queue.is_drained)
            return _with_syncs(flash.since(before).per(size.seconds_n))
        finally:
            queue.close()


def _one_a_second_sqlite(size):
    """The database in one process, as the peers: put, claim, ack; the window's flush falls with the step that finds it due."""
    with Flash() as flash:
        store = "sqlite:%s/queue.db" % flash.folder("db")
        queue = Queue(flash.path, STORE=store, SYNC_WINDOW_MS=int(WINDOW_MS * size.dt_s)).open()
        queue.put(1), queue.drain(1)
        before = flash.start()
        for _ in _beats(size):
            queue.put(1)
            queue.step()
        queue.store.flush(queue.clock.read())
        found = _with_syncs(flash.since(before).per(size.seconds_n))
        queue.close()
        return found


def _beats(size):
    """One each dt_s, by the clock and not after the work."""
    begin = time.monotonic()
    for n in range(size.seconds_n):
        time.sleep(max(begin + n * size.dt_s - time.monotonic(), 0))
        yield n


def _cost(cost, **more):
    return dict(kib=round(cost.kib, 2), flushes=round(cost.flushes, 3), **more)


def _with_syncs(cost, **more):
    """In real time others' syncs fall upon us; how many belongs beside the figure."""
    return _cost(cost, others_syncs=round(cost.syncs, 3), **more)


# --- bursts ---------------------------------------------------------------------------------------------------------------


def burst(size):
    """Enqueue in one batch, one by one, drain 1,000 twice, each on a fresh file system: {row: ...}, rows `NAME: what`."""
    rows, measures = {}, (_batch_of, _singles_of, _drain_of)
    for name, is_sqlite in ((EDGEQ, False), (EDGEQ_SQLITE, True)):
        for measure in measures:
            with Flash() as flash:
                queue = Queue(flash.path, **({"STORE": "sqlite:%s/queue.db" % flash.folder("db")} if is_sqlite else {})).open()
                measure(rows, name, flash, size, queue.put, queue.drain, queue.put_many)
                queue.close()
    for peer_class in peers.LIBRARIES:
        for measure in measures if hasattr(peer_class, "put_many") else measures[1:]:
            with Flash() as flash:
                peer = peer_class(flash.folder("peer"))
                peer.put(1), peer.step()
                measure(rows, peer.name, flash, size, peer.put, lambda n: [peer.step() for _ in range(n)],
                        getattr(peer, "put_many", None), peer.server)
                peer.close()
    return rows


def _batch_of(rows, name, flash, size, put, drain, put_many, server=0):
    """The fourth batch of 32 into a folder that is emptied each time; the flush of the measurement's own sync is left out."""
    for _ in range(4):
        before = flash.start()
        cpu = timed(lambda: put_many(32, 32), server)
        cost = flash.since_quiet(before).per(32)
        drain(32)
    rows[name + ": enqueue, a batch of 32"] = _cost(cost, cpu_us=round(cpu / 32, 1))


def _singles_of(rows, name, flash, size, put, drain, put_many, server=0):
    _stretch(rows, name + ": enqueue", flash, size.singles_n, put, server)


def _drain_of(rows, name, flash, size, put, drain, put_many, server=0):
    """The second thousand meets what the first has left: large folders, a journal that goes on in its next segment."""
    for what in ("", ", the second 1,000"):
        if put_many:
            _stretch(rows, name + ": enqueue 1,000, 32 a batch" + what, flash, size.burst_n, lambda n: put_many(n, 32), server)
        else:
            put(size.burst_n)
        _stretch(rows, name + ": drain" + what, flash, size.burst_n, drain, server)


def _stretch(rows, row, flash, n, work, server):
    before = flash.start()
    cpu = timed(lambda: work(n), server)
    rows[row] = _cost(flash.since(before).per(n), cpu_us=round(cpu / n, 1))


def many_shells(size):
    """16 shells that enqueue at once share the file system's commits, the more the longer one takes."""
    each_n = 4 if size.is_quick else 16

    def prepare(place):
        queue = Queue(place)
        queue.shell("enqueue", "job", "{}")
        return queue

    def work(_, queue):
        loop = 'i=0; while [ $i -lt %d ]; do busybox sh "$0" enqueue job "{}" || exit 1; i=$((i + 1)); done' % each_n
        running = [subprocess.Popen(["busybox", "sh", "-c", loop, WRAPPER], env=queue.environ, stdout=subprocess.DEVNULL)
                   for _ in range(16)]
        if any([process.wait() for process in running]):
            raise SystemExit("bench: edgeq: an enqueue failed")
        queue.close()
    return {"16 shells, a flush takes %d ms" % (flush_s * 1000): _cost(cost_on(flush_s, prepare, work).per(16 * each_n))
            for flush_s in ((0.01,) if size.is_quick else (0, 0.01, 0.03))}


# --- the shell ---------------------------------------------------------------------------------------------------------------


def shell(size):
    """CPU of one command, and how often that of the bare `busybox sh` beside it: medians, so that a busy machine lies less."""
    with Flash() as flash:
        queue = Queue(flash.path, MAX_JOBS=None, REPORT_S=None)  # as long as what is installed: the shell reads it byte by byte
        nq = dict(os.environ, NQDIR=flash.folder("nq"))
        hundred = '{"url":"https://example.net/hook/%s","n":12345}' % ("x" * 54)  # 100 bytes
        commands = {
            "bare busybox sh": (["busybox", "sh", "-c", ":"], queue.environ),
            "edgeq enqueue {}": (queue.shell_command("enqueue", "job", "{}"), queue.environ),
            "edgeq enqueue --text": (queue.shell_command("enqueue", "job", "--text", "hello"), queue.environ),
            "edgeq enqueue, 100-byte object": (queue.shell_command("enqueue", "job", hundred), queue.environ),
            "edgeq status, worker up": (queue.shell_command("status"), queue.environ),
            "nq true": (["nq", "-c", "true"], nq),
        }
        try:
            queue.shell("enqueue", "job", "{}")
            queue.shell("pause")
            queue.start_worker()
            rows = _beside_bare(commands, size.rounds * size.shells_n)
        finally:
            queue.close()
    rows.update(_status_alone(size, commands["bare busybox sh"]))
    return rows


def _status_alone(size, bare):
    """`status` when the worker is down and 10,000 jobs wait: it counts the names."""
    with Flash() as flash:
        queue = Queue(flash.path)
        try:
            queue.open().put_many(10000, 1000)
            row = "edgeq status, no worker, 10,000 waiting"
            return {row: _beside_bare({"bare": bare, row: (queue.shell_command("status"), queue.environ)}, 4 * size.rounds)[row]}
        finally:
            queue.close()


def _beside_bare(commands, rounds):
    """Run each of `commands` in turn, `rounds` times; the first one is what the others are compared with."""
    found = {name: [] for name in commands}
    for _ in range(rounds):
        for name, (command, environ) in commands.items():
            found[name].append(children_cpu(lambda: _run(command, environ)))
    bare = found[next(iter(commands))]
    return {name: {"cpu_us": round(statistics.median(costs)),
                   "ratio": round(statistics.median(cost / least for cost, least in zip(costs, bare)), 2)}
            for name, costs in found.items()}


def _run(command, environ):
    code = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    if code not in (0, 1, 2) or code and "status" not in command:
        raise SystemExit("bench: %s: exit %d" % (" ".join(command), code))


# --- a process a job -----------------------------------------------------------------------------------------------------------


def children(size):
    """/bin/true for each job: CPU of the parent, of everything, and what that is above the bare spawn."""
    n, rows, found = size.children_n, {}, {}
    for _ in range(size.rounds if size.is_quick else 3):
        for name, work in (("bare posix_spawn", _bare_children), (EDGEQ, _our_children),
                           ("SQLite queue + posix_spawn", _sqlite_children)):
            parent, total = work(n)
            best = found.setdefault(name, [parent, total])
            best[:] = min(best[0], parent), min(best[1], total)
    for name, (parent, total) in found.items():
        rows[name] = {"parent_us": round(parent, 0), "total_us": round(total, 0),
                      "over_bare_us": round(total - found["bare posix_spawn"][1], 0)}
    return rows


def _spawn_true():
    pid = os.posix_spawn("/bin/true", ("true",), {})
    os.waitpid(pid, 0)


def _bare_children(n):
    return _with_children(n, _spawn_true)


def _sqlite_children(n):
    with Flash() as flash:
        peer = peers.Sqlite(flash.folder("peer"))
        peer.put_many(n, 100)
        try:
            return _with_children(n, lambda: (peer.step(), _spawn_true()))
        finally:
            peer.close()


def _with_children(n, step):
    before = _children_us()
    parent = timed(lambda: [step() for _ in range(n)])
    return parent / n, (parent + _children_us() - before) / n


def _our_children(n):
    """The shipped worker, from before the first of n jobs to asleep again; its start is not counted."""
    with Flash() as flash:
        queue = Queue(flash.path, SYNC_WINDOW_MS=100)
        try:
            queue.gate()
            queue.start_worker()
            records = b"".join(b'{"type":"job","payload":%s}\n' % PAYLOAD for _ in range(n))
            subprocess.run([sys.executable, "-m", "edgeq", "enqueue", "--batch"], input=records, env=queue.environ, check=True,
                           cwd=ROOT, stdout=subprocess.DEVNULL)
            queue.await_("sleep", queue.is_asleep)
            pid = queue.worker.pid
            before = _self_and_children(pid)
            queue.open_gate()
            queue.await_("the last job's end", queue.is_drained)
            after = _self_and_children(pid)
            return (after[0] - before[0]) / n, (after[0] - before[0] + after[1] - before[1]) / n
        finally:
            queue.close()


def _self_and_children(pid):
    """(CPU of a process, CPU of its waited-for children) in microseconds; the latter in ticks of 10 ms."""
    with open("/proc/%d/stat" % pid) as stat:
        fields = stat.read().rpartition(") ")[2].split()
    return cpu_ns(pid) / 1e3, (int(fields[13]) + int(fields[14])) * 1e6 / os.sysconf("SC_CLK_TCK")


# --- depth -----------------------------------------------------------------------------------------------------------------------


def depth(size):
    """CPU a drained job with so many waiting, and as a ratio to the least deep; rounds alternate between the depths."""
    rows = {}
    for name, make in [(EDGEQ, _our_depth)] + [(peer.name, _peer_depth(peer)) for peer in peers.LIBRARIES]:
        with Flash(4096, ("-N", "300000")) as flash:
            queues = {n: make(flash.folder("d%d" % n), n) for n in size.depths}
            flash.sync()
            first = {n: timed(step, server) for n, (step, server, _) in queues.items()}
            found = {n: [] for n in size.depths}
            for _ in range(3):
                for n, (step, server, _) in queues.items():  # as many jobs as our head holds: one listing in each round
                    found[n].append(timed(lambda: [step() for _ in range(256)], server) / 256)
            for _, _, close in queues.values():
                close()
        least = min(found[size.depths[0]])
        rows[name] = {}
        for n in size.depths:
            rows[name]["us@%d" % n] = round(min(found[n]), 1)
            rows[name]["x@%d" % n] = round(min(found[n]) / least, 2)
            rows[name]["first_ms@%d" % n] = round(first[n] / 1e3, 1)
    return rows


def _our_depth(folder, n):
    queue = Queue(folder).open()
    queue.put_many(n, 1000)
    return queue.step, 0, queue.close


def _peer_depth(peer_class):
    def make(folder, n):
        peer = peer_class(folder)
        (peer.put_many if hasattr(peer, "put_many") else lambda n, _: peer.put(n))(n, 1000)
        return peer.step, peer.server, peer.close
    return make


# --- idle, memory --------------------------------------------------------------------------------------------------------------


def idle(size):
    """Two safety scans of a worker with nothing to do: what is written, CPU, context switches; beanstalkd for as long."""
    rows, seconds = {}, size.idle_scans * size.scan_s + 0.5
    with Flash() as flash:
        queue = Queue(flash.path, SAFETY_SCAN_S=size.scan_s, SYNC_WINDOW_MS=100)
        try:
            queue.start_worker()
            queue.shell("enqueue", "job", "{}")
            queue.await_("the job's end", queue.is_drained)
            time.sleep(size.scan_s + 0.5)  # the first scan after a change still moves the folders' access times
            rows[EDGEQ] = _idle_of(flash, queue.worker.pid, seconds)
        finally:
            queue.close()
    with Flash() as flash:
        peer = peers.Beanstalkd(flash.folder("peer"))
        peer.put(1), peer.step()
        rows[peer.name] = _idle_of(flash, peer.server, seconds)
        peer.close()
    return rows


def _idle_of(flash, pid, seconds):
    before, cpu, switches = flash.start(), cpu_ns(pid), _switches(pid)
    time.sleep(seconds)
    return _with_syncs(flash.since_quiet(before), cpu_ms=round((cpu_ns(pid) - cpu) / 1e6, 2), switches=_switches(pid) - switches,
                       seconds=seconds)


def _switches(pid):
    with open("/proc/%d/status" % pid) as status:
        return sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)


def memory(size):
    """RSS of the worker with nothing waiting and with 10,000."""
    found = {}
    for n in (0, 10000):
        with Flash() as flash:
            queue = Queue(flash.path)
            try:
                store = Queue(flash.path)
                if n:
                    store.open().put_many(n, 1000)
                    store.close()
                    queue.gate()
                else:
                    store.close()
                queue.start_worker()
                with open("/proc/%d/status" % queue.worker.pid) as status:
                    found[n] = {line.split()[0]: int(line.split()[1]) for line in status if line.startswith("Vm")}
            finally:
                queue.close()
    return {"edgeq worker, %d waiting" % n: {"rss_kib": values["VmRSS:"], "peak_kib": values["VmHWM:"]}
            for n, values in found.items()}


def redis(size):
    """Jobs a CPU second of one worker on Redis, beside RQ's."""
    return fleet.fleet(300 if size.is_quick else 2000, size.rounds, cpu_ns)


SECTIONS = (
    ("one_a_second", one_a_second, "One job a second, enqueue to done: KiB and flushes a job below ext4"),
    ("burst", burst, "Bursts: one by one, 32 a batch, and draining 1,000 with a handler that does nothing"),
    ("many_shells", many_shells, "Producers at once"),
    ("shell", shell, "One command in the shell"),
    ("children", children, "/bin/true for each job"),
    ("depth", depth, "CPU a drained job by how many wait"),
    ("idle", idle, "Idle"),
    ("memory", memory, "Memory of the worker"),
    ("redis", redis, "One worker on Redis, without handlers: jobs a CPU second (its own; with the server's), jobs a second"),
)


def as_json(results):
    return json.dumps(results, indent=1)
