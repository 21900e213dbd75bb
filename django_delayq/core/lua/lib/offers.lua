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
local offers = { moved = 0, offered = 0, list = {}, grants = want and want.grants, MOST = 1000 }
local is_limited, is_offered = {}, {}

-- Marks the codes of tasks in a set.
local function mark_tasks(names, codes)
  for _, number in ipairs(#names > 0 and redis.call('HMGET', TASK, unpack(names)) or {}) do
    codes[number and struct.pack('<I2', tonumber(number)) or ''] = true
  end
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
  for _, lane in ipairs(lanes.of_group(scope)) do
    codes[string.sub(lane, -3)] = is_due(lanes.first_due(lane))
  end
  for _, turn in ipairs(lanes.turns()) do
    local code, class, ms, its_scope = unpack(turn)
    found = found or (ms <= now_ms and (scope == '' or scope == its_scope or codes[code .. string.char(class)]))
  end
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
    lanes.turns_read = nil
    for _, lane in ipairs(ms == 0 and lanes.of_group(scope) or {}) do
      lanes.set_turn(lane, now_ms)
    end
    if ms == 0 and not is_wanted(scope) then
      idle[#idle + 1] = scope
    end
  end
  return #idle > 0 and idle or nil
end

-- Hands out due jobs of lanes, {lane, number, end of their permits (ms), first and last part of these} each: no lease ends
-- later than its permit. The lanes go behind the others.
function offers.hand_out(grants)
  local found, ids, next_due, seen = {}, {}, {}, {}
  for _, grant in ipairs(grants) do
    local lane, n = grant[1], grant[2]
    local from, behind = lanes.range(lane)
    next_due[lane] = false
    for i, member in ipairs(redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', seen[lane] or 0, n + 1)) do
      local _, due, id = lanes.parts(member)
      if i <= n and is_due(due) then
        found[#found + 1], ids[#ids + 1] = { grant, i, member, due }, id
      else
        next_due[lane] = next_due[lane] or due
      end
    end
    seen[lane] = (seen[lane] or 0) + n
  end
  local bodies, is_late = #ids > 0 and redis.call('HMGET', BODY, unpack(ids)) or {}, {}
  local members, granted, dues, stored, permits = {}, {}, {}, {}, {}
  for place, one in ipairs(found) do
    local grant, i, member, due = unpack(one)
    local lane, _, end_ms, first, last = unpack(grant)
    is_late[grant] = is_late[grant] or tonumber(lease_end_of(bodies[place] or '')) > end_ms
    if is_late[grant] then
      next_due[lane] = math.min(next_due[lane] or due, due)
    else
      local at = #members + 1
      members[at], granted[at], dues[at], stored[at] = member, ids[place], due, bodies[place]
      permits[at] = first ~= '' and first .. i .. last
    end
  end
  if #members > 0 then
    redis.call('ZREM', LANE_ORDER, unpack(members))
    lease_jobs(LANE, granted, dues, stored, permits)
  end
  lanes.set_turns(next_due, now_ms)
end

-- Moves due jobs of limited tasks into their lanes; the mark stays in their bodies. Return the others.
function offers.without_limited(class, ids, scores, bodies)
  if not (want and (want.whole or next(is_limited))) then
    return ids, scores, bodies
  end
  local kept, moved, fields = { {}, {}, {} }, { {}, {}, {} }, {}
  for i, id in ipairs(ids) do
    local body, list = bodies[i], kept
    local is_readable = body and #body >= 19 and math.floor(flags_of(body) / 32) % 2 == 1
    if is_readable and (want.whole or is_limited[task_code_of(body)]) then
      body, list = string.char(flags_of(body) + 64) .. string.sub(body, 2, 19) .. '\0' .. string.sub(body, 20), moved
      fields[#fields + 1], fields[#fields + 2] = id, body
    end
    local n = #list[1] + 1
    list[1][n], list[2][n], list[3][n] = id, scores[i], body
  end
  if #fields > 0 then
    redis.call('HSET', BODY, unpack(fields))
    redis.call('ZREM', DUE[class], unpack(moved[1]))
    lanes.join(unpack(moved))
    offers.moved = offers.moved + #moved[1]
  end
  return unpack(kept)
end

-- Lanes that its caller passes over are due: leave a token for the others, once a second. Return when to do that again, ms.
function offers.wake_for_full()
  local is_over = (lanes.passed_over_ms or math.huge) <= now_ms
  return is_over and wake_each(1000) or lanes.passed_over_ms
end

-- Return the due lanes of a class that are not blocked, {lane, turn} each, in the order of their turns.
local function due_lanes(class, most)
  local found = {}
  for _, turn in ipairs(lanes.turns()) do
    local code, its_class, ms = unpack(turn)
    if its_class == class and ms <= now_ms and not lanes.passed_over[code] then
      local from, to = lanes.score(code, class, 0), lanes.score(code, class, now_ms)
      local some = redis.call('ZRANGEBYSCORE', TURNS, from, to, 'WITHSCORES', 'LIMIT', 0, most)
      for i = 1, #some, 2 do
        if not is_offered[some[i]] then
          found[#found + 1] = { some[i], lanes.turn_of(some[i + 1]) }
        end
      end
    end
  end
  table.sort(found, function(one, other)
    return one[2] < other[2] or one[2] == other[2] and one[1] < other[1]
  end)
  return found
end

-- Return the due lanes of a class that may be offered. Those of blocked groups are put off until the block ends.
local function free_lanes(class, most)
  local free
  repeat
    free = {}
    local due, scopes = due_lanes(class, most), {}
    for i, one in ipairs(due) do
      scopes[i] = string.sub(one[1], 1, -4)
    end
    local records = #due > 0 and not lanes.is_free and redis.call('HMGET', BLOCKED, unpack(scopes)) or {}
    for i, one in ipairs(due) do
      local until_ms = records[i] and select(2, struct.unpack('<dd', records[i])) or 0
      if until_ms > now_ms then
        lanes.set_turn(one[1], until_ms)
      else
        free[#free + 1] = one[1]
      end
    end
  until #free == #due
  return free
end

-- Adds offers of lanes, {lane, its first members in LANE_ORDER} each. Permits have to last longer than the leases, which a ttr
-- may prolong.
local function add_offers(due)
  local ids = {}
  for _, one in ipairs(due) do
    for i = 1, prefers_own_ttr and #one[2] or 1 do
      ids[#ids + 1] = select(3, lanes.parts(one[2][i]))
    end
  end
  local bodies, place, turns = #ids > 0 and redis.call('HMGET', BODY, unpack(ids)) or {}, 1, {}
  for _, one in ipairs(due) do
    local lane, n, first, lease_ms = one[1], #one[2], bodies[place] or '', ttr_ms
    for _ = 1, prefers_own_ttr and n or 1 do
      lease_ms = math.max(lease_ms, lease_end_of(bodies[place] or '') - now_ms)
      place = place + 1
    end
    lease_ms = math.ceil(lease_ms * 1.1)
    offers.list[#offers.list + 1] = { lane, n, lease_ms, now_ms + lease_ms, options_of(first) }
    offers.offered, is_offered[lane], turns[lane] = offers.offered + n, true, select(2, lanes.parts(one[2][1]))
    name_task_of('\0' .. string.sub(lane, -3, -2))
  end
  lanes.set_turns(turns, now_ms)
end

-- Offers up to `room` jobs of the due lanes of a class, as many of each as of the others. A caller without limits gets them.
function offers.offer(class, room)
  room = want and math.min(room, (want.most or 0) - offers.offered) or room
  local due, offered, free = room > 0 and free_lanes(class, room) or {}, {}, {}
  for i, lane in ipairs(due) do
    local from, behind = lanes.range(lane, (now_ms + 1) * 1000)
    local share = math.ceil(room / math.max(1, math.min(#due - i + 1, room)))
    local members = room > 0 and redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', 0, share) or {}
    if #members > 0 then
      offered[#offered + 1], free[#free + 1] = { lane, members }, { lane, #members, math.huge, '', '' }
    end
    room = room - #members
  end
  if want then
    add_offers(offered)
  else
    offers.hand_out(free)
  end
end

lanes.is_free = not want
mark_tasks(want and want.tasks or {}, is_limited)
mark_tasks(want and want.full or {}, lanes.passed_over)
return offers
