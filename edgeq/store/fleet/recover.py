"""Who claims, who is dead, and what goes back when he is (P5).

A claim names its owner's node, boot, pid namespace, pid and start time. The same node in another boot, and a pid that is gone
here, are dead at once; of other hosts only the deadline on the server's clock speaks.
"""

import posix

from edgeq.errors import BadJob
from edgeq.job import PROCESSING, Lease
from edgeq.lease import Holder, is_alive
from edgeq.store.fleet.element import node_name, text_of

GRACE_S = 2  # how long an element may stand in processing without a claim


class Recover:
    """Part of store/redis.py's Redis."""

    @property
    def node(self):
        """This device's name in the fleet."""
        return self._home_text()[0]

    @property
    def owner_text(self):
        """Who claims: `NODE BOOT PIDNS PID START`."""
        return " ".join(self._home_text() + (str(self.leases.pid), str(self.leases.start)))

    def _home_text(self):
        if self._node is None:
            try:
                space = posix.readlink("/proc/self/ns/pid").strip("pid:[]")
            except OSError:
                space = "0"
            self._node = node_name(self), space
        return self._node[0], self.clock.boot_id, self._node[1]

    def _claims(self):
        answer = self.run_script("CLAIMS")
        return [(text_of(answer[n]), text_of(answer[n + 1]), text_of(answer[n + 2]), float(answer[n + 3]))
                for n in range(0, len(answer), 4)]

    def stale(self, now):
        """[(Entry, Holder or None)] of claims nobody rightly holds. What stands in processing without a claim goes back."""
        found, self.is_reap_due = [], False
        for id, token, owner, left_s in self._claims():
            if token not in self._mine:
                is_stale, holder = self._judge(token, owner, left_s, now)
                entry = is_stale and self._entry(id)
                if entry and entry.state == PROCESSING:
                    found.append((entry, holder))
        self._rescue()
        return found

    def _judge(self, token, owner, left_s, now):
        """(whether the claim is stale, its Holder when it is of this boot)."""
        parts = owner.split(" ")
        node, boot_id, space = self._home_text()
        if len(parts) != 5 or parts[0] != node or parts[2] != space and parts[1] == boot_id:
            return left_s <= 0, None
        if parts[1] != boot_id:
            return True, None
        pid, start = int(parts[3]), int(parts[4])
        holder = self.leases.read(token) or Holder(token, pid, start, boot_id, 0, 0, now.boot, now.boot + left_s)
        if not is_alive(pid, start) or (pid, start) == (self.leases.pid, self.leases.start):
            return True, holder  # ours, but we do not know it: its answer was lost
        return left_s <= 0, holder

    def _rescue(self):
        """(how many went back, seconds until the next one may or None): what stands in processing without a claim."""
        n, soonest = self.run_script("RESCUE", int(GRACE_S * 1e6))
        if n:
            self.log.warning("rescued", n=n, because="in processing without a claim")
        return n, float(soonest) if soonest else None

    def take_over(self, entry, holder, now, lease_s):
        token = self.leases.make_token()
        group = (holder.group, holder.group_start) if holder else (0, 0)
        if not self.run_script("TAKE_OVER", entry.id, entry.token, token, self.owner_text, int(lease_s * 1e6)):
            return None
        self._mine[token] = entry.id
        self.leases.create(token, now.boot + lease_s, now.boot, group)
        self.leases.remove(entry.token)
        text, error = self.link.call("HMGET", self.key + ":job:" + entry.id, "text", "err")
        lease = Lease(entry.moved(PROCESSING, token=token, again=True), None, now.boot, now.boot + lease_s, True, False,
                      self.last_error(entry.id) or text_of(error or b""))
        lease.handler = group
        try:
            lease.record = self._decoded(text or b"")
        except BadJob as trouble:
            self.link.call("LPUSH", self.key + "_corrupt", text or b"")  # CRASH: twice after a cut here, never lost
            self.run_script("DROP", entry.id, token)
            self.log.warning("set aside", id=entry.id, why=trouble.why)
            self._forget(lease)
            return None
        return lease

    def sweep_dead(self, now):
        """Nothing to do: a job is done and its dead letter gone in one script."""
