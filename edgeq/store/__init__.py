"""One door to all stores: `open_store(config, clock, log)`; a backend is imported when its URL asks for it."""

from edgeq.errors import BadConfig

BACKENDS = {  # scheme: module with a function open_backend(config, clock, log, disk)
    "spool": "edgeq.store.spool",
    "sqlite": "edgeq.store.sqlite",
    "redis": "edgeq.store.redis",
    "rediss": "edgeq.store.redis",
}
REMEDIES = {"sqlite": "the image was built without it: build edgeq with it, or use the spool"}
REMEDY = "pip install edgeq[redis], or use edgeq-redis.pyz"


def open_store(config, clock, log, disk=None):
    """The Store that `config.store` names. `disk`: the seam to use instead of the real one (fault tests)."""
    scheme = config.store.partition(":")[0]
    if scheme not in BACKENDS:
        raise BadConfig("configuration", "STORE=%s" % config.store[:60], "unknown kind of store",
                        "use one of: %s" % " ".join(sorted(BACKENDS)))
    try:
        module = __import__(BACKENDS[scheme], None, None, ["open_backend"])
    except ModuleNotFoundError as error:
        if error.name != BACKENDS[scheme]:
            raise
        raise BadConfig("configuration", "STORE=%s:..." % scheme, "this edition has no such store",
                        REMEDIES.get(scheme, REMEDY)) from None
    return module.open_backend(config, clock, log, disk)
