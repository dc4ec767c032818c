"""The line to a Redis server: one connection, scripts by their hash, every trouble as one of our errors.

    redis://[USER@]HOST[:PORT][/DB]?queue=NAME      rediss:// for TLS

The password stands in the file REDIS_PASSWORD_FILE or in EDGEQ_REDIS_PASSWORD, never in the URL where a log could show it; one
that stands there all the same is used and never printed. It is taken out of our environment, so no handler sees it.

A silent server is noticed after SOCKET_S: no call waits longer, and nothing is sent again by itself (a script may have run although
its answer was lost; the caller knows what may be repeated). LOADING, MISCONF, READONLY, OOM, BUSY, no line: StoreDown, try
again later. No or a wrong password: BadPassword, exit 78.
"""

import posix
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from edgeq import disk
from edgeq.errors import BadConfig, BadPassword, StoreDown

SOCKET_S = 5  # a half-open line is noticed within 15 s, and a handler's timeout is late by no more than this
NOT_LET_IN = ("NOAUTH", "WRONGPASS", "NOPERM", "INVALID USERNAME", "INVALID PASSWORD", "AUTH ", "AUTHENTICATION REQUIRED")
REMEDIES = (
    ("LOADING", "it reads its data: wait"), ("MISCONF", "its last save failed: look at its disk and log"),
    ("READONLY", "it is a replica: name the primary"), ("OOM", "raise its maxmemory"), ("BUSY", "a script runs: wait"),
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


class Link:
    """One connection to `place`, made when it is needed and made anew after trouble."""

    def __init__(self, place, config):
        self.place, self.config = place, config
        self._client = None
        self._hashes = {}
        self.calls_n = 0

    def client(self):
        if self._client is None:
            place = self.place
            options = {"ssl": True, "ssl_ca_certs": place.ca} if place.is_tls else {}
            self._client = redis.Redis(
                host=place.host, port=place.port, db=place.db, username=place.user, password=find_password(self.config, place),
                socket_timeout=SOCKET_S, socket_connect_timeout=SOCKET_S, socket_keepalive=True, retry=Retry(NoBackoff(), 0),
                protocol=2, client_name="edgeq-%d" % posix.getpid(), single_connection_client=False, max_connections=1, **options)
        return self._client

    def call(self, *args):
        """The server's answer to one command, bytes as they came."""
        self.calls_n += 1
        try:
            return self.client().execute_command(*args)
        except redis.exceptions.NoScriptError:
            raise
        except (redis.RedisError, OSError, ValueError) as error:
            self.close()
            raise self._understood(error) from None

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
            self.close()
            raise self._understood(error) from None

    def close(self):
        client, self._client = self._client, None
        if client is not None:
            try:
                client.connection_pool.disconnect()
            except (redis.RedisError, OSError):
                pass

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
