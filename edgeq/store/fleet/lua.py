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

The clock is the server's. ARGV 1 and 2 replace it in tests: microseconds that never step, and the wall clock's.
"""

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

# jobs of 10 fields each -> [id, word, superseded id or ''] of each
ENQUEUE = """
local out = {}
for i = 3, #ARGV, 10 do
    local id, typ, pr, opts, payload = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    local delay, at, key, latest, exp = tonumber(ARGV[i + 5]), ARGV[i + 6], ARGV[i + 7], ARGV[i + 8], ARGV[i + 9]
    local word, old = standing(id), ''
    if not word and key ~= '' then
        local other = redis.call('HGET', Q .. ':keys', key)
        if other and is_waiting(other) then
            if latest == '1' then old = other else id, word = other, 'already queued' end
        end
    end
    if not word then
        add(id, typ, pr, opts, payload, delay, at, key, latest, exp)
        word = 'queued'
        if old ~= '' then remove(old); redis.call('HSET', Q .. ':keys', key, id) end
    end
    out[#out + 1] = id; out[#out + 1] = word; out[#out + 1] = old
end
return out
"""

# token, lease us, owner, how long it will sleep in us (0: not), where it slept, what its BLMOVE took, number of allowed types,
# these, then blocked types
CLAIM = """
local token, lease, owner, doze, source, moved = ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8]
local n = tonumber(ARGV[9])
local allowed, blocked, gone, passed = {}, {}, {}, {}
for i = 10, 9 + n do allowed[ARGV[i]] = true end
for i = 10 + n, #ARGV do blocked[ARGV[i]] = true end
if source ~= '' then
    redis.call('ZREM', source == Q and ASLEEP or ASIDE, owner)
    if moved ~= '' then unmove(moved) end
end
local function promote(set, t)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', int(t), 'LIMIT', 0, 64)) do
        redis.call('ZREM', set, id)
        local h = redis.call('HMGET', J(id), 'text', 'pr', 'seq')
        if h[1] then put_back(ready(h[2]), h[1], tonumber(h[3])) end
    end
end
local sane = trusted()
promote(A, now)
promote(F, now)
if sane then promote(X, wall) end
local pauses = redis.call('HGETALL', Q .. ':pauses')
for p = 0, 9 do
    local list, skip = ready(p), 0
    while true do
        local some = redis.call('LRANGE', list, -(skip + (skip == 0 and 1 or 64)), -(skip + 1))
        if #some == 0 then break end
        for i = #some, 1, -1 do
            local e = some[i]
            local id, typ = string.match(e, '^{"id":"([%w_:-]+)","type":"([%w_-]+)"')
            local j = id and J(id)
            local h = j and redis.call('HMGET', j, 'st', 'text', 'seq', 'att', 'again', 'due', 'at', 'key', 'exp', 'acc', 'err',
                                       'dtext', 'latest')
            if e == WAKE then redis.call('LREM', list, -1, e)
            elseif not (h and h[1]) then
                if not (id and is_done(id)) then return {'stranger', list, e, gone} end
                redis.call('LREM', list, -1, e)
                gone[#gone + 1] = 'done ' .. id .. ' ' .. typ
            elseif h[1] == 'dlq' and e == h[12] then
                -- moved here by hand: a kick
                redis.call('LREM', list, -1, e)
                redis.call('LREM', D, -1, e)
                local seq = issue()
                redis.call('HSET', j, 'st', 'incoming', 'seq', int(seq), 'att', 0, 'again', 1, 'due', 0, 'at', 0, 'acc', int(now))
                redis.call('LPUSH', list, h[2])
                return {'again', gone}
            elseif (h[1] ~= 'incoming' and h[1] ~= 'failed') or e ~= h[2] or is_timed(id) then
                redis.call('LREM', list, -1, e)
                if h[1] == 'processing' and e == h[2] and not has(P, e) then redis.call('LPUSH', P, e) end
                gone[#gone + 1] = 'double ' .. id .. ' ' .. typ
            elseif h[9] ~= '0' and sane and (now - tonumber(h[10])) / 1e6 > tonumber(h[9]) then
                redis.call('LREM', list, -1, e)
                forget_key(j, id)
                redis.call('DEL', j)
                gone[#gone + 1] = 'expired ' .. id .. ' ' .. typ
            elseif blocked[typ] then
                skip = skip + 1
                passed[h[1] .. ' ' .. typ] = (passed[h[1] .. ' ' .. typ] or 0) + 1
            elseif not allowed[typ] then
                return {'ask', typ, gone}
            elseif h[8] ~= '' and (redis.call('HGET', Q .. ':keyrun', h[8]) or id) ~= id then
                skip = skip + 1
            elseif h[8] ~= '' and (redis.call('HGET', Q .. ':keys', h[8]) or id) ~= id
                   and redis.call('HGET', J(redis.call('HGET', Q .. ':keys', h[8])), 'latest') == '1' then
                redis.call('LREM', list, -1, e)
                redis.call('DEL', j)
                gone[#gone + 1] = 'superseded ' .. id .. ' ' .. typ
            else
                if skip > 0 then redis.call('LREM', list, -1, e); redis.call('LPUSH', P, e)
                elseif is_unknown(redis.pcall('LMOVE', list, P, 'RIGHT', 'LEFT')) then redis.call('RPOPLPUSH', list, P) end
                if h[8] ~= '' then
                    if redis.call('HGET', Q .. ':keys', h[8]) == id then redis.call('HDEL', Q .. ':keys', h[8]) end
                    redis.call('HSET', Q .. ':keyrun', h[8], id)
                end
                redis.call('HSET', j, 'st', 'processing', 'tok', token, 'own', owner, 'att', tonumber(h[4]) + 1,
                           'started', int(now), 'ost', h[1], 'oatt', h[4], 'oagain', h[5],
                           'odue', h[6], 'oat', h[7], 'due', 0, 'at', 0)
                redis.call('ZADD', L, int(now + lease), id)
                return {'job', id, typ, e, tostring(p), h[3], h[4], h[5], h[6], h[7], h[1], h[11] or '', pauses, gone}
            end
        end
    end
end
local function first(set) return redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2] end
local due = {}
for _, s in ipairs({first(A) or '', first(F) or ''}) do
    if s ~= '' then due[#due + 1] = (tonumber(s) - now) / 1e6 end
end
local x = sane and first(X)
if x then due[#due + 1] = (tonumber(x) - wall) / 1e6 end
local soonest = ''
for _, s in ipairs(due) do if soonest == '' or s < soonest then soonest = s end end
local held = {}
for name, count in pairs(passed) do held[#held + 1] = name .. ' ' .. count end
local place = redis.call('LLEN', Q) == 0 and Q or KNOCK
if doze > 0 then redis.call('ZADD', place == Q and ASLEEP or ASIDE, int(now + doze), owner) end
local lease_ends = first(L)
return {'none', tostring(soonest), held, place, redis.call('LLEN', P) > redis.call('ZCARD', L) and 1 or 0,
        lease_ends and tostring((tonumber(lease_ends) - now) / 1e6) or '', pauses, gone}
"""

# list, element, then as of ENQUEUE: what a foreign producer pushed becomes a job of ours, in its place
ADOPT = """
local list, e, id = ARGV[3], ARGV[4], ARGV[5]
if redis.call('LINDEX', list, -1) ~= e and not has(list, e) then return 'gone' end
is_quiet = true
local word = standing(id)
if word then
    redis.call('LREM', list, -1, e)
    return word
end
add(id, ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10]), ARGV[11], ARGV[12], ARGV[13], ARGV[14])
local text = redis.call('HGET', J(id), 'text')
if ready(ARGV[7]) == list and ARGV[11] == '' then
    redis.call('LREM', list, 1, text)
    redis.call('LINSERT', list, 'AFTER', e, text)
end
redis.call('LREM', list, -1, e)
return 'queued'
"""

# list, element, why: it cannot be read
SET_ASIDE = """
if redis.call('LREM', ARGV[3], -1, ARGV[4]) == 0 then return 0 end
redis.call('LPUSH', Q .. '_corrupt', ARGV[4])
redis.call('HSET', Q .. ':why', redis.sha1hex(ARGV[4]), ARGV[5])
return 1
"""

# id, token, line, key time: done
ACK = """
local id, j = ARGV[3], J(ARGV[3])
if redis.call('HGET', j, 'tok') ~= ARGV[4] then return 0 end
remove(id)
add_line(id, ARGV[5])
return 1
"""

# id, token, state, due, wait us, attempts, again, why, dead text, is_at: back to where it waits, or to the dead letters
PUT = """
local id, j, st, att, again, why = ARGV[3], J(ARGV[3]), ARGV[5], ARGV[8], ARGV[9], ARGV[10]
local h = redis.call('HMGET', j, 'tok', 'text', 'pr', 'seq', 'key')
if h[1] ~= ARGV[4] then return {0} end
local key = h[5]
if key ~= '' and st == 'failed' and ARGV[7] ~= '' then
    local other = redis.call('HGET', Q .. ':keys', key)
    if other and other ~= id and is_waiting(other) and redis.call('HGET', J(other), 'latest') == '1' then
        remove(id)
        return {2, other}
    end
end
take_out(id)
redis.call('HDEL', j, 'tok', 'own', 'started')
forget_key(j, id)
redis.call('HSET', j, 'st', st, 'att', att, 'again', again, 'due', ARGV[6], 'at', ARGV[12])
if why ~= '' then redis.call('HSET', j, 'err', why) end
if st == 'dlq' then
    redis.call('HSET', j, 'dtext', ARGV[11])
    redis.call('LPUSH', D, ARGV[11])
    return {1}
end
if key ~= '' and not redis.call('HGET', Q .. ':keys', key) then redis.call('HSET', Q .. ':keys', key, id) end
if ARGV[7] ~= '' then
    local wait = tonumber(ARGV[7])
    if st == 'failed' then redis.call('HSET', j, 'due', int(math.ceil(math.max(wall, newest()) / 1e6 + wait / 1e6))) end
    redis.call('ZADD', F, int(now + wait), id)
    if wait < SOON then knock() end
elseif st == 'failed' then redis.call('ZADD', F, int(now), id)
else put_back(ready(h[3]), h[2], tonumber(h[4])) end
return {1}
"""

# id, token
DROP = """
if redis.call('HGET', J(ARGV[3]), 'tok') ~= ARGV[4] then return 0 end
remove(ARGV[3])
return 1
"""

# lease us, then id, token of each -> 1 or 0 of each
HEARTBEAT = """
local out = {}
for i = 4, #ARGV, 2 do
    local is_ours = redis.call('HGET', J(ARGV[i]), 'tok') == ARGV[i + 1]
    if is_ours then redis.call('ZADD', L, int(now + tonumber(ARGV[3])), ARGV[i]) end
    out[#out + 1] = is_ours and 1 or 0
end
return out
"""

# -> id, token, owner, seconds left, ... of every claim
CLAIMS = """
local out = {}
local all = redis.call('ZRANGE', L, 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
    local h = redis.call('HMGET', J(all[i]), 'tok', 'own')
    if h[1] then
        out[#out + 1] = all[i]; out[#out + 1] = h[1]; out[#out + 1] = h[2] or ''
        out[#out + 1] = tostring((tonumber(all[i + 1]) - now) / 1e6)
    end
end
return out
"""

# id, old token, new token, owner, lease us
TAKE_OVER = """
local id, j = ARGV[3], J(ARGV[3])
if redis.call('HGET', j, 'tok') ~= ARGV[4] then return 0 end
redis.call('HSET', j, 'tok', ARGV[5], 'own', ARGV[6], 'again', 1)
redis.call('ZADD', L, int(now + tonumber(ARGV[7])), id)
local text = redis.call('HGET', j, 'text')
if not has(P, text) then redis.call('LPUSH', P, text) end
return 1
"""

# grace us. Elements of Q_processing that no claim has (a lost reply to BLMOVE, a foreign one, a hand) go back where they can be
# claimed, once they were seen for so long. -> how many did, seconds until the next one may
RESCUE = """
local grace, seen, found, n, soonest = tonumber(ARGV[3]), {}, {}, 0, ''
for _, e in ipairs(redis.call('LRANGE', P, 0, 9999)) do
    local id = id_of(e)
    local h = id and redis.call('HMGET', J(id), 'st', 'text', 'pr', 'seq', 'dtext')
    if h and h[1] == 'processing' and h[2] == e and not seen[e] then seen[e] = true
    else
        local name = redis.sha1hex(e)
        local left = tonumber(redis.call('HGET', Q .. ':orphans', name) or int(now)) + grace - now
        if left > 0 then
            found[name] = now + grace - left
            redis.call('HSETNX', Q .. ':orphans', name, int(now))
            if soonest == '' or left / 1e6 < tonumber(soonest) then soonest = tostring(left / 1e6) end
        elseif redis.call('LREM', P, -1, e) == 1 and e ~= WAKE and not (id and is_done(id)) then
            if not (h and h[1]) or h[1] == 'dlq' and h[5] == e then redis.call('RPUSH', Q, e)
            elseif h[2] == e and (h[1] == 'incoming' or h[1] == 'failed') and not is_timed(id) and not has(ready(h[3]), e) then
                put_back(ready(h[3]), e, tonumber(h[4]))
            end
            n = n + 1
        end
    end
end
for _, name in ipairs(redis.call('HKEYS', Q .. ':orphans')) do
    if not found[name] then redis.call('HDEL', Q .. ':orphans', name) end
end
return {n, soonest}
"""

# owner, what its BLMOVE took or '': it sleeps no more, and does not want it
UNMOVE = """
redis.call('ZREM', ASLEEP, ARGV[3])
redis.call('ZREM', ASIDE, ARGV[3])
if ARGV[4] ~= '' then unmove(ARGV[4]) end
return 1
"""

# type: resumed. Those who wait beside what may not run look again.
RESUME = """
local n = redis.call('HDEL', Q .. ':pauses', ARGV[3])
for _ = 1, redis.call('ZCOUNT', ASIDE, int(now), '+inf') do knock(Q) end
return n
"""

# id
KICK = """
local id, j = ARGV[3], J(ARGV[3])
local h = redis.call('HMGET', j, 'st', 'text', 'pr', 'dtext', 'key')
if not h[1] then return is_done(id) and 'done' or '' end
if h[1] ~= 'dlq' then return h[1] end
redis.call('LREM', D, -1, h[4])
redis.call('HSET', j, 'st', 'incoming', 'seq', int(issue()), 'att', 0, 'again', 1, 'due', 0, 'at', 0, 'acc', int(now),
           'latest', 0)
redis.call('HDEL', j, 'dtext')
push(h[3], h[2])
return 'kicked'
"""

# id
CANCEL = """
local id = ARGV[3]
local st = redis.call('HGET', J(id), 'st')
if not st then return is_done(id) and 'done' or '' end
if st ~= 'processing' then remove(id) end
return st
"""

# ids: dead letters, or what stands waiting, to be removed. -> how many
REMOVE = """
local n = 0
for i = 4, #ARGV do
    if redis.call('HGET', J(ARGV[i]), 'st') == ARGV[3] then remove(ARGV[i]); n = n + 1 end
end
return n
"""

# bytes to keep, how many at once
PRUNE_DONE = """
local n, keep = 0, tonumber(ARGV[3])
while n < tonumber(ARGV[4]) and tonumber(redis.call('HGET', M, 'done_bytes') or '0') > keep do
    local id = redis.call('ZRANGE', ORDER, 0, 0)[1]
    if not id then redis.call('HDEL', M, 'done_bytes'); break end
    drop_line(id)
    n = n + 1
end
return n
"""

PURGE_DONE = """
local n = redis.call('ZCARD', ORDER)
redis.call('DEL', ORDER, DONE)
redis.call('HDEL', M, 'done_bytes')
return n
"""

COUNTS = """
local waiting, oldest = 0, false
for p = 0, 9 do
    local list = ready(p)
    waiting = waiting + redis.call('LLEN', list)
    local e = redis.call('LINDEX', list, -1)
    local id = e and id_of(e)
    local acc = id and redis.call('HGET', J(id), 'acc')
    if acc and (not oldest or tonumber(acc) < oldest) then oldest = tonumber(acc) end
end
local h = redis.call('HMGET', M, 'done_n', 'seq')
local due = redis.call('ZCOUNT', A, '-inf', int(now)) + (trusted() and redis.call('ZCOUNT', X, '-inf', int(wall)) or 0)
return {waiting + due, redis.call('ZCARD', A) + redis.call('ZCARD', X) - due, redis.call('ZCARD', F), redis.call('ZCARD', L),
        redis.call('LLEN', D), tonumber(h[1] or '0'), redis.call('LLEN', Q .. '_corrupt'),
        oldest and tostring((now - oldest) / 1e6) or ''}
"""

# move: id, state, pr, seq, due, is_at, att, again, type, text, dtext, exp, key, latest, err, wait us, rank
TAKE_PARCEL = """
local id, st = ARGV[3], ARGV[4]
if is_done(id) then return 0 end
local rank = {incoming = 1, failed = 2, processing = 3, dlq = 4}
local old = redis.call('HMGET', J(id), 'st', 'att')
if old[1] then
    if rank[st] < rank[old[1]] or (rank[st] == rank[old[1]] and tonumber(ARGV[9]) <= tonumber(old[2])) then return 0 end
    remove(id)
end
local seq = tonumber(ARGV[6])
if seq > newest() then redis.call('HSET', M, 'seq', int(seq)) end
redis.call('HSET', J(id), 'st', st, 'pr', ARGV[5], 'seq', ARGV[6], 'due', ARGV[7], 'at', ARGV[8], 'att', ARGV[9], 'again', ARGV[10],
           'type', ARGV[11], 'text', ARGV[12], 'dtext', ARGV[13], 'acc', int(now), 'exp', ARGV[14], 'key', ARGV[15],
           'latest', ARGV[16], 'err', ARGV[17])
if st == 'dlq' then redis.call('LPUSH', D, ARGV[13])
elseif ARGV[8] == '1' then redis.call('ZADD', X, int(tonumber(ARGV[7]) * 1e6), id)
elseif st == 'failed' then redis.call('ZADD', F, int(now + tonumber(ARGV[18])), id)
elseif tonumber(ARGV[18]) > 0 then redis.call('ZADD', A, int(now + tonumber(ARGV[18])), id)
else
    local list = ready(ARGV[5])
    local e = redis.call('LINDEX', list, 0)
    local other = e and id_of(e)
    local last = other and redis.call('HGET', J(other), 'seq')
    if last and tonumber(last) > seq then put_back(list, ARGV[12], seq) else push(ARGV[5], ARGV[12]) end
end
if ARGV[15] ~= '' and (st == 'incoming' or st == 'failed') then redis.call('HSET', Q .. ':keys', ARGV[15], id) end
return 1
"""

# id, line, seq
TAKE_LINE = """
if is_done(ARGV[3]) then return 0 end
if redis.call('EXISTS', J(ARGV[3])) == 1 then remove(ARGV[3]) end
if tonumber(ARGV[5]) > newest() then redis.call('HSET', M, 'seq', ARGV[5]) end
add_line(ARGV[3], ARGV[4])
return 1
"""
