-- Lanes in a reserve (lib/lanes): the shard offers lanes with due jobs, a limiter grants some of these (limit.lua), and the
-- next reserve hands out the granted jobs. The inside of a function that is called only where its caller has something to
-- say of limits, or jobs are in lanes.
-- `served.lanes`: '' = the caller knows no limits, and gets jobs whatever these are; a number = only `most`; else a map of
-- what is not empty: tasks =
-- names of limited tasks, whole = the queue is limited: due jobs of these that are met join their lanes; full = tasks of
-- which the caller may hold no more; most = number of jobs that are offered at most; blocks = {scope, at (us), until when
-- in ms from now (0 = not blocked any more), task code or ''} each; grants = {lane, number of jobs, when their permits end
-- (ms), the first part of the permits, the last part} each. A scope is as in BLOCKED (lib/lanes).
local most = tonumber(served.lanes)
local want = most and { most = most } or served.lanes ~= '' and cmsgpack.unpack(served.lanes) or nil
-- A call moves no more than MOST jobs into lanes, because these take Redis several milliseconds.
local lanes = get_lanes()
local offers = { moved = 0, offered = 0, list = {}, MOST = 1000 }
local is_limited, is_offered = {}, {}

local function codes_of(names)
  local codes = {}
  for i, number in ipairs(#names > 0 and redis.call('HMGET', TASK, unpack(names)) or {}) do
    codes[i] = number and struct.pack('<I2', tonumber(number)) or ''
  end
  return codes
end

local function is_group(scope)
  return #scope > 1 and string.byte(scope, -1) == 0
end

-- Stores what a limiter said of a scope. A reply that arrives late does not replace a newer one, and a block does not replace
-- its end in the same reply; a moment of 0 has no age: no limiter could be asked.
local function note(scope, at, until_ms)
  local record = redis.call('HGET', BLOCKED, scope)
  local before = record and (struct.unpack('<d', record)) or 0
  if at == 0 or at > before or (at == before and until_ms == 0) then
    redis.call('HSET', BLOCKED, scope, struct.pack('<dd', math.max(at, before), until_ms))
  end
end

-- Return true if a lane of a scope may be offered now.
local function is_wanted(scope)
  local found, codes = false, {}
  for _, lane in ipairs(is_group(scope) and lanes.of_group(scope) or {}) do
    local due = lanes.first_due(lane)
    codes[string.sub(lane, -3)] = is_due(due)
  end
  lanes.each_turn(function(code, class, ms, its_scope)
    found = found or (ms <= now_ms and (scope == '' or scope == its_scope or codes[code .. string.char(class)]))
  end)
  return found and not paused_out
end

-- Applies blocks, and return those scopes that are not blocked any more although nothing waits there.
function offers.apply_blocks()
  local idle = {}
  for _, one in ipairs(want and want.blocks or {}) do
    local scope, at, ms, code = unpack(one)
    if code ~= '' then
      redis.call('HSET', BLOCKED, '\0' .. code, scope)
    end
    note(scope, at, ms > 0 and now_ms + ms or 0)
    for _, lane in ipairs(is_group(scope) and lanes.blocked_until(scope) <= now_ms and lanes.of_group(scope) or {}) do
      lanes.set_turn(lane, now_ms)
    end
    if ms == 0 and not is_wanted(scope) then
      idle[#idle + 1] = scope
    end
  end
  return #idle > 0 and idle or nil
end

-- Hands out due jobs of a lane: no lease ends later than its permit. The lane goes behind the others.
local function hand_out_lane(lane, n, end_ms, first, last)
  local from, behind = lanes.range(lane, (now_ms + 1) * 1000)
  local granted, dues, bodies, permits = {}, {}, {}, {}
  for i, member in ipairs(redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', 0, n)) do
    local id = string.sub(member, #lane + 9)
    local body = redis.call('HGET', BODY, id)
    if tonumber(lease_end_of(body or '')) > end_ms then
      break
    end
    granted[i], dues[i], bodies[i] = id, struct.unpack('>d', member, #lane + 1), body
    permits[i] = first .. i .. last
    redis.call('ZREM', LANE_ORDER, member)
  end
  if #granted > 0 then
    lease_jobs(LANE, granted, dues, bodies, first ~= '' and permits or nil)
  end
  lanes.set_turn(lane, now_ms)
end

function offers.hand_out_granted(worker)
  for _, grant in ipairs(want and want.grants or {}) do
    if token == 0 then
      take_token(worker)
    end
    hand_out_lane(unpack(grant))
  end
end

-- Moves due jobs of limited tasks into their lanes; the mark stays in their bodies. Return the others.
function offers.without_limited(class, ids, scores, bodies)
  if not want then
    return ids, scores, bodies
  end
  local kept, moved = { {}, {}, {} }, { {}, {}, {} }
  for i, id in ipairs(ids) do
    local body, list = bodies[i], kept
    local is_readable = body and #body >= 19 and math.floor(flags_of(body) / 32) % 2 == 1
    if is_readable and (want.whole or is_limited[task_code_of(body)]) then
      body, list = string.char(flags_of(body) + 64) .. string.sub(body, 2, 19) .. '\0' .. string.sub(body, 20), moved
    end
    local n = #list[1] + 1
    list[1][n], list[2][n], list[3][n] = id, scores[i], body
  end
  if #moved[1] > 0 then
    local fields = {}
    for i, id in ipairs(moved[1]) do
      fields[2 * i - 1], fields[2 * i] = id, moved[3][i]
    end
    redis.call('HSET', BODY, unpack(fields))
    redis.call('ZREM', DUE[class], unpack(moved[1]))
    lanes.join(unpack(moved))
    offers.moved = offers.moved + #moved[1]
  end
  return unpack(kept)
end

-- Lanes that its caller passes over are due: leave a token for the others, once a second. Return when to do that again, ms.
function offers.wake_for_full()
  local EVERY_MS = 1000
  if not lanes.passed_over_ms or lanes.passed_over_ms > now_ms then
    return lanes.passed_over_ms
  end
  local relayed = tonumber(redis.call('HGET', META, 'relayed')) or 0
  if now_ms - relayed >= EVERY_MS then
    redis.call('HSET', META, 'relayed', text(now_ms))
    wake()
    relayed = now_ms
  end
  return relayed + EVERY_MS
end

-- Return the due lanes of a class that are not blocked, {lane, turn} each, in the order of their turns.
local function due_lanes(class, most)
  local found = {}
  lanes.each_turn(function(code, its_class, ms)
    if its_class == class and ms <= now_ms and not lanes.passed_over[code] then
      local from, _ = lanes.span(code, class)
      local until_score = lanes.score(from, now_ms)
      local some = redis.call('ZRANGEBYSCORE', TURNS, text(from), until_score, 'WITHSCORES', 'LIMIT', 0, most)
      for i = 1, #some, 2 do
        if not is_offered[some[i]] then
          found[#found + 1] = { some[i], lanes.turn_of(some[i + 1]) }
        end
      end
    end
  end)
  table.sort(found, function(one, other)
    return one[2] < other[2] or one[2] == other[2] and one[1] < other[1]
  end)
  return found
end

-- Return the due lanes of a class that may be offered. Those of blocked groups are put off until the block ends.
local function free_lanes(class, most)
  local free, was_put_off
  repeat
    free, was_put_off = {}, false
    for _, one in ipairs(due_lanes(class, most)) do
      local scope = string.sub(one[1], 1, -4)
      local until_ms = scope ~= '\0' and lanes.blocked_until(scope) or 0
      if until_ms > now_ms then
        lanes.set_turn(one[1], until_ms)
        was_put_off = true
      else
        free[#free + 1] = one[1]
      end
    end
  until not was_put_off
  return free
end

-- Adds an offer of `n` jobs of a lane. Its permits have to last longer than the leases, which a ttr may prolong.
local function add_offer(lane, n, from, behind)
  local lease_ms, first = ttr_ms, nil
  for _, member in ipairs(redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', 0, prefers_own_ttr and n or 1)) do
    local body = redis.call('HGET', BODY, string.sub(member, #lane + 9)) or ''
    first, lease_ms = first or body, math.max(lease_ms, prefers_own_ttr and lease_end_of(body) - now_ms or 0)
  end
  local group, at = group_of(first)
  local options = group ~= '' and #first > at and string.sub(first, at + 2, at + 1 + struct.unpack('<I2', first, at)) or ''
  lease_ms = math.ceil(lease_ms * 1.1)
  offers.list[#offers.list + 1] = { lane, n, lease_ms, now_ms + lease_ms, options }
  name_task_of('\0' .. string.sub(lane, -3, -2))
  lanes.set_turn(lane, now_ms)
end

-- Offers up to `room` jobs of the due lanes of a class, as many of each as of the others. A caller without limits gets them.
function offers.offer(class, room)
  room = want and math.min(room, (want.most or 0) - offers.offered) or room
  local due = room > 0 and free_lanes(class, room) or {}
  for i, lane in ipairs(due) do
    local from, behind = lanes.range(lane, (now_ms + 1) * 1000)
    local share = math.ceil(room / math.max(1, math.min(#due, room) - i + 1))
    local n = math.min(redis.call('ZLEXCOUNT', LANE_ORDER, from, behind), share)
    if room > 0 and n > 0 and want then
      is_offered[lane] = true
      add_offer(lane, n, from, behind)
      offers.offered = offers.offered + n
    elseif room > 0 and n > 0 then
      hand_out_lane(lane, n, math.huge, '', '')
    end
    room = room - n
  end
end

lanes.is_free = not want
for _, code in ipairs(codes_of(want and want.tasks or {})) do
  is_limited[code] = true
end
for _, code in ipairs(codes_of(want and want.full or {})) do
  lanes.passed_over[code] = true
end
return offers
