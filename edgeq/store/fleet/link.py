"""The line to a Redis server: scripts by their hash, a sleep on the server, every trouble as one of our errors.

    redis://[USER@]HOST[:PORT][/DB]?queue=NAME      rediss:// for TLS

The password stands in the file REDIS_PASSWORD_FILE or in EDGEQ_REDIS_PASSWORD, never in the URL where a log could show it; one
that stands there all the same is used and never printed. It is taken out of our environment, so no handler sees it.

A silent server is noticed after SOCKET_S: no call waits longer, and nothing is sent again by itself (a script may have run although
its answer was lost; the caller knows what may be repeated). LOADING, MISCONF, READONLY, OOM, BUSY, no line: StoreDown, try
again later. No or a wrong password: BadPassword, exit 78. After trouble every connection is made anew: a name may mean another
server by now (a failover).

    listen -> (asleep in BLMOVE) -> hear: the element, or None when the time was over
                    '--- hush: woken by CLIENT UNBLOCK; the element, if one came first

The connection that sleeps is the one that served commands: an idle worker has one. A command meanwhile makes a second, which
the next sleep with nothing else to do closes.
"""

import posix
from select import POLLIN, poll as make_poll
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from edgeq import disk
from edgeq.errors import BadConfig, BadPassword, StoreDown

SOCKET_S = 5  # a half-open line is noticed within 15 s, and a handler's timeout is late by no more than this
NOT_LET_IN = ("NOAUTH", "WRONGPASS", "NOPERM", "INVALID USERNAME", "INVALID PASSWORD", "AUTH ", "AUTHENTICATION REQUIRED")
SLEEPS = ("BLMOVE", "BRPOPLPUSH")  # the second for servers before 6.2
REMEDIES = (
    ("LOADING", "it reads its data: wait"), ("MISCONF", "its last save failed: look at its disk and log"),
    ("READONLY", "it is a replica: name the primary"), ("UNBLOCKED", "it became a replica: name the primary"),
    ("OOM", "raise its maxmemory"), ("BUSY", "a script runs: wait"),
    ("refused", "is redis-server running there, and does its 'bind' allow us?"), ("name", "correct the host's name"))


class Place:
    """A URL in parts. shown: the URL without a password."""

    def __init__(self, url, default_queue):
        try:
            parts = urlsplit(url)
            self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 6379
            self.db = int(parts.path.strip("/") or "0")
        except ValueError:
            raise BadConfig("configuration", "STORE", "not redis://HOST:PORT/DB?queue=NAME", "correct the line") from None
        self.is_tls, self.user = parts.scheme == "rediss", unquote(parts.username or "") or None
        self.password = unquote(parts.password) if parts.password else None
        query = parse_qs(parts.query)
        self.queue = query.get("queue", [default_queue])[0]
        self.ca = query.get("ca", [None])[0]
        if not self.queue or not all(c.isalnum() or c in "_-:." for c in self.queue):
            raise BadConfig("configuration", "STORE", "queue=%s is no name" % self.queue[:40], "correct the line")
        self.shown = "%s://%s:%d/%d?queue=%s" % (parts.scheme, self.host, self.port, self.db, self.queue)


_from_environment = None


def find_password(config, place):
    """From the file, the environment or the URL; None when there is none."""
    global _from_environment
    found = posix.environ.pop(b"EDGEQ_REDIS_PASSWORD", None)
    if found is not None:
        import os
        os.environ.pop("EDGEQ_REDIS_PASSWORD", None)
        _from_environment = found.decode("utf-8", "surrogateescape")
    if config.redis_password_file:
        try:
            return disk.read_text(config.redis_password_file, 4096, follow=True).strip("\r\n")
        except OSError as error:
            raise BadConfig("store", "REDIS_PASSWORD_FILE=%s" % config.redis_password_file, error.strerror,
                            "make it a file that the worker may read") from None
    return _from_environment or place.password


class _Line:
    """One connection."""

    def __init__(self, options):
        make = redis.SSLConnection if options.pop("is_tls") else redis.Connection
        self.connection = make(**options)
        self.connection.connect()
        self.id = None
        self.fd = self.connection._sock.fileno()
        self._poll = make_poll()
        self._poll.register(self.fd, POLLIN)
        self._has_more = False  # read from the socket, not yet from the connection's own buffer

    def ask(self, *args):
        self.connection.send_command(*args)
        return self.connection.read_response()

    def read(self):
        self._has_more = False
        return self.connection.read_response()

    def can_read(self):
        """True when an answer, or the line's end, can be read. Under TLS there may come what is neither."""
        self._has_more = self._has_more or bool(self._poll.poll(0)) and self.connection.can_read(0)
        return self._has_more

    def is_fresh(self):
        """Nothing unread, and the other end has not hung up meanwhile."""
        try:
            return not self.can_read()
        except (redis.RedisError, OSError):
            return False

    def close(self):
        try:
            self.connection.disconnect()
        except (redis.RedisError, OSError):
            pass


class Link:
    """The connections to `place`, made when they are needed and made anew after trouble."""

    def __init__(self, place, config):
        self.place, self.config = place, config
        self._free = []
        self._asleep = None
        self._sleep_word = SLEEPS[0]
        self._hashes = {}
        self.trouble = None  # the error of the last call, until one succeeds

    def call(self, *args):
        """The server's answer to one command, bytes as they came."""
        line = None
        try:
            line = self._take()
            answer = line.ask(*args)
        except (redis.RedisError, OSError, ValueError) as error:
            if line is not None and isinstance(error, redis.exceptions.NoScriptError):
                self._free.append(line)
                raise
            raise self._broken(error, line) from None
        self._free.append(line)
        self.trouble = None
        return answer

    def run(self, script, key, args):
        """The answer of a script of lua.py."""
        known = self._hashes.get(script)
        if known is None:
            from hashlib import sha1
            known = self._hashes[script] = sha1(script.encode()).hexdigest()
        try:
            return self.call("EVALSHA", known, 1, key, *args)
        except redis.exceptions.NoScriptError:
            pass
        try:
            return self.call("EVAL", script, 1, key, *args)
        except redis.exceptions.NoScriptError as error:
            raise self._broken(error) from None

    def scan(self, word, *where, match=()):
        """Everything a SCAN, ZSCAN, ... names, in one list each time round."""
        cursor = b"0"
        while True:
            cursor, found = self.call(word, *where, cursor, *match, "COUNT", 1000)
            yield from found
            if cursor == b"0":
                return

    # --- asleep on the server -----------------------------------------------------------------------------------

    @property
    def is_asleep(self):
        return self._asleep is not None

    @property
    def asleep_fd(self):
        """Readable when the sleep is over."""
        return self._asleep.fd

    def listen(self, source, target, seconds, is_alone):
        """Sleep until an element comes to `source`; it is moved to `target`. is_alone: no command is to be expected meanwhile."""
        line = None
        try:
            line = self._take()
            if line.id is None:
                line.id = self._own_id(line)
            words = (self._sleep_word, source, target)
            if self._sleep_word == SLEEPS[0]:
                line.connection.send_command(*words, "RIGHT", "LEFT", "%.3f" % seconds)
            else:
                line.connection.send_command(*words, int(seconds) + 1)
        except (redis.RedisError, OSError) as error:
            raise self._broken(error, line) from None
        self._asleep = line
        while is_alone and self._free:
            self._free.pop().close()

    def hear(self):
        """What the sleep brought: an element, or None."""
        line, self._asleep = self._asleep, None
        try:
            answer = line.read()
        except (redis.RedisError, OSError) as error:
            if "unknown command" not in str(error).lower() or self._sleep_word != SLEEPS[0]:
                raise self._broken(error, line) from None
            self._sleep_word, answer = SLEEPS[1], None
        self._free.append(line)
        return answer

    def has_answer(self):
        """True when `hear` will not wait."""
        try:
            return self._asleep.can_read()
        except (redis.RedisError, OSError) as error:
            raise self._broken(error) from None

    def hush(self):
        """End the sleep; what it had brought before, or None."""
        if not self.has_answer() and not self._unblock():
            self._asleep.close()  # what it brings now stands in processing without a claim, and is found there
            self._asleep = None
            return None
        return self.hear()

    def _unblock(self):
        """False when this user may not."""
        line = None
        try:
            line = self._take()
            if self._asleep.id:
                line.ask("CLIENT", "UNBLOCK", self._asleep.id)
            self._free.append(line)
            return bool(self._asleep.id)
        except redis.ResponseError:
            self._free.append(line)
            return False
        except (redis.RedisError, OSError) as error:
            raise self._broken(error, line) from None

    def _own_id(self, line):
        try:
            return line.ask("CLIENT", "ID")
        except redis.ResponseError:
            return 0  # not allowed to know

    # --- connections ---------------------------------------------------------------------------------------------

    def _take(self):
        """A connection for one command; of a free one the other end may have hung up."""
        while self._free:
            line = self._free.pop()
            if line.is_fresh():
                return line
            line.close()
        place = self.place
        options = {"is_tls": place.is_tls}
        if place.is_tls:
            options["ssl_ca_certs"] = place.ca
        return _Line(dict(
            options, host=place.host, port=place.port, db=place.db, username=place.user,
            password=find_password(self.config, place), socket_timeout=SOCKET_S, socket_connect_timeout=SOCKET_S,
            socket_keepalive=True, retry=Retry(NoBackoff(), 0), protocol=2, client_name="edgeq-%d" % posix.getpid()))

    def close(self):
        if self._asleep is not None:
            self._free.append(self._asleep)
            self._asleep = None
        while self._free:
            self._free.pop().close()

    def _broken(self, error, line=None):
        """The error as one of ours; no connection is trusted any more."""
        if line is not None:
            line.close()
        self.close()
        self.trouble = self._understood(error)
        return self.trouble

    def _understood(self, error):
        text = " ".join(str(error).split())[:160] or type(error).__name__
        where = "redis %s:%d" % (self.place.host, self.place.port)
        upper = text.upper()
        if isinstance(error, redis.exceptions.AuthenticationError) or any(upper.startswith(word) for word in NOT_LET_IN):
            return BadPassword("store", where, "it does not let us in (%s)" % text.split(" ")[0],
                               "correct REDIS_PASSWORD_FILE, EDGEQ_REDIS_PASSWORD or the user in STORE")
        if isinstance(error, redis.exceptions.ReadOnlyError):
            text = "READONLY " + text
        elif isinstance(error, redis.exceptions.OutOfMemoryError):
            text = "OOM " + text
        elif isinstance(error, redis.exceptions.BusyLoadingError):
            text = "LOADING " + text
        todo = [remedy for word, remedy in REMEDIES if word in text]
        return StoreDown("store", where, text, todo[0] if todo else "tried again")
