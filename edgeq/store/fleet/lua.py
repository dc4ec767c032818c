"""The Redis store's scripts: each verb is one of them, and a script runs whole or not at all.

Keys of a queue Q: the lists `Q` (ready, priority 5; `Q:p0` to `Q:p9` the others), `Q_processing`, `Q_dlq`, `Q_corrupt`; the hash
`Q:job:ID` of every job that waits, runs or is dead; the sets `Q:delayed` and `Q:failed` (when, by the server's clock in
microseconds), `Q:at` (when, by its wall clock), `Q:leases` (until when); `Q:done` and `Q:doneorder` (completions);
`Q:keys`, `Q:keyrun` (coalescing), `Q:pauses`, `Q:meta` (seq, done_n, done_bytes).

Fields of `Q:job:ID`: text (what stands in the lists), dtext (what stands in Q_dlq), st (state), pr, seq, att, again, type, due, at,
acc (accepted at), exp, key, latest, err; claimed: tok, own, started, and ost, oatt, oagain, odue, oat, where it came from.

A list holds what `redis-cli` shows; the hash decides. An element whose hash says that it waits elsewhere, runs or is done is
dropped where it would be claimed, so a hand's RPOPLPUSH runs nothing twice. An element without a hash comes from a
foreign producer: the worker reads it and gives it one.

`Q:asleep` and `Q:aside` (who sleeps on the server until when, see fleet/doze.py), `Q:knock` (wakes the latter), `Q:orphans` (what
was seen in Q_processing without a claim, and when).

The clock is the server's. ARGV 1 and 2 replace it in tests: microseconds that never step, and the wall clock's.

Written for Redis 5 and newer: commands that came later (LMOVE, LPOS) are called in a way that may fail.
"""

from edgeq.store.fleet import lua_claim, lua_settle, lua_tend

PRELUDE = """
local Q, BUILD, SOON = KEYS[1], %d, %d
local now, wall = tonumber(ARGV[1]), tonumber(ARGV[2])
if now == 0 then
    local t = redis.call('TIME')
    now = tonumber(t[1]) * 1000000 + tonumber(t[2])
    wall = now
end
local P, D, F, A, X, M = Q .. '_processing', Q .. '_dlq', Q .. ':failed', Q .. ':delayed', Q .. ':at', Q .. ':meta'
local L, DONE, ORDER = Q .. ':leases', Q .. ':done', Q .. ':doneorder'
local ASLEEP, ASIDE, KNOCK = Q .. ':asleep', Q .. ':aside', Q .. ':knock'
local function J(id) return Q .. ':job:' .. id end
local function ready(p) if tonumber(p) == 5 then return Q end return Q .. ':p' .. p end
local function int(n) return string.format('%%.0f', n) end
local function newest() return tonumber(redis.call('HGET', M, 'seq') or '0') end
local function issue()
    local last = newest()
    local seq = wall
    if seq <= last or seq >= 9e15 then seq = last + 1 end
    redis.call('HSET', M, 'seq', int(seq))
    return seq
end
local function trusted() return wall / 1e6 >= BUILD and wall / 1e6 + 5 >= newest() / 1e6 end
local function is_done(id) return redis.call('HEXISTS', DONE, id) == 1 end
local function id_of(text) return string.match(text, '^{"id":"([%%w_:-]+)","type":"') end
local function is_unknown(answer) return type(answer) == 'table' and answer.err end
local function has(list, text)
    local at = redis.pcall('LPOS', list, text)
    if not is_unknown(at) then return at end
    for _, e in ipairs(redis.call('LRANGE', list, 0, -1)) do if e == text then return true end end
    return false
end
local function is_timed(id) return redis.call('ZSCORE', A, id) or redis.call('ZSCORE', F, id) or redis.call('ZSCORE', X, id) end
-- something is ready, or soon: where workers sleep it may not be seen, so one of them is woken (fleet/doze.py)
local WAKE = '{"wake":"edgeq"}'
local knocks_n, is_quiet = 0, false
local function knock(list)
    if is_quiet then return end
    if redis.call('ZCOUNT', ASLEEP, int(now), '+inf') > knocks_n then
        if list ~= Q and (knocks_n > 0 or redis.call('LINDEX', Q, -1) ~= WAKE) then redis.call('RPUSH', Q, WAKE) end
        knocks_n = knocks_n + 1
    elseif redis.call('ZCOUNT', ASIDE, int(now), '+inf') > redis.call('LLEN', KNOCK) then redis.call('LPUSH', KNOCK, WAKE) end
end
local function push(p, text)
    redis.call('LPUSH', ready(p), text)
    knock(ready(p))
end
-- a sleeper's BLMOVE took it to processing and nobody has claimed it yet: back to where it was, the mark away
local function unmove(e)
    if redis.call('LREM', P, 1, e) == 0 or e == WAKE then return end
    local id = id_of(e)
    local h = id and redis.call('HMGET', J(id), 'st', 'text')
    if h and h[1] == 'processing' and h[2] == e then
        if not has(P, e) then redis.call('LPUSH', P, e) end
    else redis.call('RPUSH', Q, e) end
end
-- a job that was here before goes to where its SEQ belongs, near the end that is claimed from
local function put_back(list, text, seq)
    local some = redis.call('LRANGE', list, -64, -1)
    for i = #some, 1, -1 do
        local id = id_of(some[i])
        local other = id and redis.call('HGET', J(id), 'seq')
        if not other or tonumber(other) > seq then
            if i == #some then redis.call('RPUSH', list, text) else redis.call('LINSERT', list, 'AFTER', some[i], text) end
            return knock(list)
        end
    end
    if #some == 0 then redis.call('RPUSH', list, text) else redis.call('LINSERT', list, 'BEFORE', some[1], text) end
    knock(list)
end
local function forget_key(j, id)
    local key = redis.call('HGET', j, 'key')
    if key and key ~= '' then
        if redis.call('HGET', Q .. ':keys', key) == id then redis.call('HDEL', Q .. ':keys', key) end
        if redis.call('HGET', Q .. ':keyrun', key) == id then redis.call('HDEL', Q .. ':keyrun', key) end
    end
end
-- whatever list or set the job stands in, it stands there no more
local function take_out(id)
    local j = J(id)
    local h = redis.call('HMGET', j, 'st', 'text', 'pr', 'dtext')
    if h[1] == 'dlq' then
        redis.call('LREM', D, -1, h[4])
    elseif h[1] == 'processing' then
        redis.call('LREM', P, 1, h[2])
        redis.call('ZREM', L, id)
    elseif h[1] and redis.call('ZREM', A, id) + redis.call('ZREM', F, id) + redis.call('ZREM', X, id) == 0 then
        -- RACE: a BLMOVE took it to processing just now
        if redis.call('LREM', ready(h[3]), -1, h[2]) == 0 then redis.call('LREM', P, 1, h[2]) end
    end
    return h[1]
end
local function remove(id)
    local st = take_out(id)
    forget_key(J(id), id)
    redis.call('DEL', J(id))
    return st
end
local function add_line(id, line)
    redis.call('HSET', DONE, id, line)
    redis.call('ZADD', ORDER, redis.call('HINCRBY', M, 'done_n', 1), id)
    redis.call('HINCRBY', M, 'done_bytes', #id + #line + 64)
end
local function drop_line(id)
    local line = redis.call('HGET', DONE, id)
    if line then
        redis.call('HINCRBY', M, 'done_bytes', -(#id + #line + 64))
        redis.call('HDEL', DONE, id)
    end
    redis.call('ZREM', ORDER, id)
end
local function add(id, typ, pr, opts, payload, delay, at, key, latest, exp)
    local seq = issue()
    local due = 0
    if at ~= '' then due = tonumber(at) elseif delay > 0 then due = math.ceil(seq / 1e6) + delay end
    local text = '{"id":"' .. id .. '","type":"' .. typ .. '","created_at":' .. int(math.floor(seq / 1e6)) .. opts
    if due > 0 then text = text .. ',"available_at":' .. int(due) end
    text = text .. ',"payload":' .. payload .. '}'
    redis.call('HSET', J(id), 'text', text, 'st', 'incoming', 'pr', pr, 'seq', int(seq), 'att', 0, 'again', 0, 'type', typ,
               'due', int(due), 'at', (at ~= '' and due > 0) and 1 or 0, 'acc', int(now), 'exp', exp, 'key', key, 'latest', latest)
    if at ~= '' and due > 0 then
        redis.call('ZADD', X, int(due * 1e6), id)
        if due * 1e6 < wall + SOON then knock() end
    elseif delay > 0 then
        redis.call('ZADD', A, int(now + delay * 1e6), id)
        if delay * 1e6 < SOON then knock() end
    else push(pr, text) end
    if key ~= '' then redis.call('HSET', Q .. ':keys', key, id) end
end
local function standing(id)
    local st = redis.call('HGET', J(id), 'st')
    if st then return st == 'dlq' and 'already dead' or 'already queued' end
    return is_done(id) and 'already done' or false
end
local function is_waiting(id)
    local st = redis.call('HGET', J(id), 'st')
    return st == 'incoming' or st == 'failed'
end
"""


def script_of(name, build_date, soon_us):
    """The whole script of that name. build_date: a clock before it is untrusted; soon_us: what is due so soon wakes a sleeper."""
    for room in (lua_claim, lua_settle, lua_tend):
        if hasattr(room, name):
            return PRELUDE % (build_date, soon_us) + getattr(room, name)
    raise KeyError(name)
