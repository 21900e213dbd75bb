#!lua flags=allow-oom
-- Grant the start of jobs within limits that hold over all workers and shards. A permit is a slot in the limits of a job; it
-- ends by itself, a tenth of a lease after the lease of the job, unless it is renewed. All that is checked here is booked in
-- the same call, and a call that is sent twice gets the reply of the first one.
-- KEYS    1 stem of the keys of all limits, which lie in its slot: of each limit <stem>permits:<limit> (zset: permit -> end,
--         ms), <stem>waiters:<limit> (zset: '<shard>:<queue>' whose jobs wait for it -> since when, us) and
--         <stem>rate:<limit> (us: when all starts so far would be over if each took its interval; when the last ones were
--         granted; and since when it counts), <stem>pause:<limit> (until when it grants nothing, ms), what was done
--         lately: <stem>refund:<grant>:<limit>, and <stem>reply:<first part of its permits>, the reply;
--         and <stem>limits (hash: limit -> numbers that were set at run time, packed by cmsgpack)
-- ARGV    1 a map of what is not empty: release = limits of permits -> their names; renew = {name, limits, ms} each; pass_on =
--         limits of which a freed permit was of no use where it was offered last; pause = {limit, ms for which it grants
--         nothing} each;
--         refund = {limit, starts that were not used, when they were granted, name of the grant} each;
--         limits = limit -> {total: permits that exist, interval: us from one start to the next, burst: starts at once};
--         look = true if the states of these limits are wanted;
--         asks = {place that waits if there are too few permits, number of jobs, ms, first part of the permits, limits}
--         each. A permit is '<name>\0<limit>\0<limit>…'; the names of those that are granted are the first part and
--         their number.
-- Returns a map, packed by cmsgpack: now (us), granted = number for each ask, blocked = for each ask {limit that grants no
--         more, ms after which to ask again} or false, freed = {limit, place} each: these waited, and may ask again now;
--         states = {limit, state} each, see look_at.
-- Events  none
-- include text
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local want = cmsgpack.unpack(ARGV[1])
local function key_of(kind, limit)
  return KEYS[1] .. kind .. ':' .. limit
end

-- A call that is sent again gets the reply of the first one.
local REPLY_MS = 20000
local mark = want.asks and key_of('reply', want.asks[1][4])
local reply_before = mark and redis.call('GET', mark)
if reply_before then
  return reply_before
end
local limits, names, is_own = want.limits or {}, {}, {}
for name in pairs(limits) do
  names[#names + 1] = name
end
-- What was set at run time stands above what the caller's code says.
for i, own in ipairs(#names > 0 and redis.call('HMGET', KEYS[1] .. 'limits', unpack(names)) or {}) do
  for number, value in pairs(own and cmsgpack.unpack(own) or {}) do
    limits[names[i]][number], is_own[names[i]] = value, true
  end
end
-- ms after which who waits asks again, if the process that had to wake it died; time for which waiters are remembered
local RETRY_MS, WAITERS_MS = 5000, 60000
-- Most waiters of a limit that one call looks at.
local MOST_WAITERS = 100

-- Books permits, each with its end in front, for at most so many ms.
local function book(limit, permits, ms)
  local key = key_of('permits', limit)
  redis.call('ZADD', key, unpack(permits))
  if redis.call('PTTL', key) < ms + WAITERS_MS / 2 then
    redis.call('PEXPIRE', key, text(ms + WAITERS_MS))
  end
end

-- Of each limit when all its starts would be over, when the last ones were granted, since when it counts with the same
-- interval, and that interval; and for how long it is paused.
local rates, pauses = {}, {}

-- Return how many of `n` starts a limit allows now, or more; if they are too few, the ms after which to ask again, and true
-- if others may return some before. The rate is GCRA, the leaky bucket as a meter (ITU-T I.371): every start moves a moment on
-- by the interval, and it may be ahead of now by the burst.
local function free_of(limit, n)
  local total, interval, burst = limits[limit].total, limits[limit].interval, limits[limit].burst
  if pauses[limit] > 0 then
    return 0, pauses[limit], false
  end
  local key, ms = key_of('permits', limit), 0
  local free = total and total - redis.call('ZCARD', key) or math.huge
  if free < n then
    free = free + redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now_ms)) -- these ended by themselves
    ms = math.min(RETRY_MS, (tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) or math.huge) - now_ms)
  end
  local ahead = interval and rates[limit][1] - now_us
  local starts = interval and math.floor(burst - ahead / interval + 1e-6) or math.huge
  if starts < math.min(free, n) then
    free, ms = starts, math.ceil((ahead - (burst - 1) * interval) / 1000)
  end
  return math.max(0, free), ms, true
end

-- Return the state of a limit for people (core/limit_status.py): its numbers, whether some were set at run time, the permits
-- that are taken, the starts that are possible now, and the ms until the next one, -1 = until a permit is returned.
local function look_at(limit)
  local free, ms, is_open = free_of(limit, math.huge)
  local taken = redis.call('ZCOUNT', key_of('permits', limit), '(' .. text(now_ms), '+inf')
  local is_full = is_open and taken >= (limits[limit].total or math.huge)
  return { limits[limit], is_own[limit] or false, taken, free, is_full and -1 or free > 0 and 0 or ms }
end

local function move_rate(limit, moment, last, since, interval)
  moment = math.max(now_us, moment)
  rates[limit] = { moment, last, since, interval }
  redis.call('SET', key_of('rate', limit), struct.pack('<dddd', unpack(rates[limit])), 'PX', text((moment - now_us) / 1000 + 1))
end

local freed = {}

for limits, permits in pairs(want.release or {}) do
  for limit in string.gmatch(limits, '[^%z]+') do
    for first = 1, #permits, 250 do
      local gone = redis.call('ZREM', key_of('permits', limit), unpack(permits, first, math.min(first + 249, #permits)))
      freed[limit] = (freed[limit] or 0) + gone
    end
  end
end
for _, limit in ipairs(want.pass_on or {}) do
  freed[limit] = (freed[limit] or 0) + 1
end
for _, one in ipairs(want.pause or {}) do
  local key, until_ms = key_of('pause', one[1]), now_ms + one[2]
  if (tonumber(redis.call('GET', key)) or 0) < until_ms then
    redis.call('SET', key, text(until_ms), 'PX', text(one[2]))
  end
end
local moved, keys = { unpack(names) }, {}
for _, one in ipairs(want.refund or {}) do
  moved[#moved + 1] = one[1]
end
for i, limit in ipairs(moved) do
  keys[2 * i - 1], keys[2 * i] = key_of('rate', limit), key_of('pause', limit)
end
local stored = #keys > 0 and redis.call('MGET', unpack(keys)) or {}
for i, limit in ipairs(moved) do
  rates[limit] = { struct.unpack('<dddd', stored[2 * i - 1] or struct.pack('<dddd', 0, 0, math.huge, 0)) }
  rates[limit][1] = math.max(now_us, rates[limit][1])
  pauses[limit] = (tonumber(stored[2 * i]) or 0) - now_ms
end
-- Without the starts that were not used, the moment would be earlier by their intervals, less the time for which the rate
-- would have been unused: at most that from their grant to the last one. What is given back is never more.
for _, one in ipairs(want.refund or {}) do
  local limit, n, at, grant = unpack(one)
  local moment, last, since, interval = unpack(rates[limit])
  local us = at >= since and n * interval - (last - at) or 0
  if us > 0 and redis.call('SET', key_of('refund', grant .. ':' .. limit), '', 'NX', 'PX', WAITERS_MS) then
    move_rate(limit, moment - us, last, since, interval)
    freed[limit] = (freed[limit] or 0) + 1
  end
end
for _, one in ipairs(want.renew or {}) do
  for limit in string.gmatch(one[2], '[^%z]+') do
    book(limit, { text(now_ms + one[3]), one[1] }, one[3])
  end
end

local granted, blocked, states = {}, {}, {}
for i, ask in ipairs(want.asks or {}) do
  local place, n, ms, first, names = unpack(ask)
  local most, blocking = n, nil
  for _, limit in ipairs(names) do
    local free = free_of(limit, most)
    if free < most then
      most, blocking = free, limit
    end
  end
  local permits, end_ms = {}, text(now_ms + ms)
  for number = 1, most do
    permits[2 * number - 1], permits[2 * number] = end_ms, first .. string.char(number)
  end
  for _, limit in ipairs(most > 0 and names or {}) do
    if limits[limit].total then
      book(limit, permits, ms)
    end
    local interval = limits[limit].interval
    if interval then
      local moment, _, since, before = unpack(rates[limit])
      move_rate(limit, moment + most * interval, now_us, interval == before and since or now_us, interval)
    end
  end
  granted[i], blocked[i] = most, false
  if blocking then
    -- Of its other limits it leaves permits, perhaps those for which its place was told to ask: the next one gets its turn.
    for _, limit in ipairs(names) do
      freed[limit] = limit ~= blocking and (freed[limit] or 0) + n - most or freed[limit]
    end
    local _, wait_ms, may_be_earlier = free_of(blocking, n) -- now that these are booked
    if may_be_earlier then
      local key = key_of('waiters', blocking)
      redis.call('ZADD', key, 'NX', text(now_us), place)
      redis.call('PEXPIRE', key, WAITERS_MS)
    end
    blocked[i] = { blocking, math.max(1, wait_ms) }
  end
end

-- Those who wait longest ask again: as many as permits are free. Of every other queue one more, because the processes of
-- these queues may have no free thread.
local waiting = {}
keys = {}
for limit in pairs(freed) do
  keys[#keys + 1] = key_of('waiters', limit)
end
for limit, n in pairs(#keys > 0 and redis.call('EXISTS', unpack(keys)) > 0 and freed or {}) do
  local key, queues = key_of('waiters', limit), {}
  n = limits[limit] and math.min(n, (free_of(limit, n))) or n
  for i, place in ipairs(n > 0 and redis.call('ZRANGE', key, 0, MOST_WAITERS - 1) or {}) do
    local queue = string.match(place, ':(.*)$')
    if i <= n or not queues[queue] then
      queues[queue] = true
      redis.call('ZREM', key, place)
      waiting[#waiting + 1] = { limit, place }
    end
  end
end
for i, name in ipairs(want.look and names or {}) do
  states[i] = { name, look_at(name) }
end
local reply = cmsgpack.pack({ now = now_us, granted = granted, blocked = blocked, freed = waiting, states = states })
if mark then
  redis.call('SET', mark, reply, 'PX', REPLY_MS)
end
return reply
