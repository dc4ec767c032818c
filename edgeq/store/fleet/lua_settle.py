"""Scripts of a claim's end: settle by token, leases, what nobody claims. Each follows lua.py's PRELUDE."""

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
