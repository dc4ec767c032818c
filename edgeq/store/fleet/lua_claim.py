"""Scripts of the way in: enqueue, claim, and what a foreign producer pushed. Each follows lua.py's PRELUDE."""

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
