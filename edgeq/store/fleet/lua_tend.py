"""Scripts of the operator's verbs, bounds, counts, and of `edgeq move`. Each follows lua.py's PRELUDE."""

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
