"""What becomes of a claim: pure functions of (attempts, outcome, settings). The store acts on the answer.

Exit codes as in DESIGN 5. `draw()` gives a number in [0, 1).
"""

from edgeq.job import Ack, Retry, Bury, Hold, GiveBack, Drop
from edgeq.log import escape

WRONG_FOR_EVER = frozenset((64, 65, 66, 76, 77, 78, 100))
DESTINATION_DOWN = 69
CANNOT_RUN = frozenset((126, 127))
MAX_EXPONENT = 40  # 2**40 times any delay is beyond any maximum; an exponent of 1,024 overflows a float


def backoff(attempts, base_s, max_s, jitter, draw):
    """Seconds to wait after try number `attempts`: min(base * 2^(attempts-1), max), less up to `jitter` of it.

    Never under half of it, never over it, so a thousand jobs that failed together do not come back together (B65).
    """
    full = min(base_s * 2 ** min(max(attempts - 1, 0), MAX_EXPONENT), max_s)
    return full * (1 - min(max(jitter, 0), 0.5) * draw())


def last_words(tail):
    """The last line of a handler's output that says something, as printable ASCII."""
    for line in reversed(tail.split(b"\n")):
        line = line.strip()
        if line:
            return escape(line, 100)
    return ""


def explain(outcome):
    """`exit 1: last words`, `signal 9`, `timeout after 30 s`."""
    if outcome.timed_out:
        return "timeout after %g s" % outcome.timeout_s
    if outcome.error:
        return outcome.error
    words = last_words(outcome.tail)
    why = "signal %d" % outcome.signal if outcome.signal else "exit %d" % outcome.exit_code
    return "%s: %s" % (why, words) if words else why


def decide(attempts, max_attempts, outcome, settings, jitter, draw):
    """The Verdict on a run. attempts: tries charged, this one included. settings: the type's."""
    if outcome.cancelled:
        return Drop("cancelled")
    if outcome.stopped and (outcome.signal or outcome.exit_code != 0):
        return GiveBack("stopped")
    if outcome.error:
        return Hold("held", outcome.error)
    why = explain(outcome)
    code = None if outcome.signal or outcome.timed_out else outcome.exit_code
    if code == 0:
        return Ack(outcome.ctl.get("result", ""))
    if code in WRONG_FOR_EVER:
        return Bury(why)
    if code == DESTINATION_DOWN:
        return Hold("offline", why)
    if code in CANNOT_RUN:
        return Hold("held", why)
    return retry_or_bury(attempts, max_attempts, why, settings, jitter, draw, outcome.ctl.get("retry_after"))


def retry_or_bury(attempts, max_attempts, why, settings, jitter, draw, asked_s=None):
    """Another try while there are any, with the handler's own `retry_after` when it asked (at most MAX_DELAY_S)."""
    if attempts >= max_attempts:
        return Bury(why)
    wait_s = backoff(attempts, settings.base_delay_s, settings.max_delay_s, jitter, draw)
    if asked_s is not None:
        wait_s = min(asked_s, settings.max_delay_s)
    return Retry(wait_s, why)


def after_death(attempts, max_attempts, settings, jitter, draw):
    """The Verdict on a claim whose worker died: the first time it was hardly the job's fault, so it runs at once."""
    why = "worker died"
    if attempts == 1 and max_attempts > 1:
        return Retry(0, why)
    return retry_or_bury(attempts, max_attempts, why, settings, jitter, draw)
