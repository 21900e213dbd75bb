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
local want = most and { most = most > 0 and most or nil } or served.lanes ~= '' and cmsgpack.unpack(served.lanes) or nil
-- A call moves no more than MOST jobs into lanes, because these take Redis several milliseconds.
local lanes = get_lanes()
local offers = { moved = 0, offered = 0, list = {}, grants = want and want.grants, MOST = 1000 }
local is_limited, is_offered = {}, {}
-- Most lanes whose turn it is at a time.
local MOST_LANES = 32

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
-- later than its permit. From a job on whose lease would, the lane is left. Lanes that were not offered go behind the others.
function offers.hand_out(grants)
  local granted, dues, permits, next_due = {}, {}, {}, {}
  for _, grant in ipairs(grants) do
    local lane, n, end_ms, first, last = unpack(grant)
    local from, behind = lanes.range(lane)
    local reached, is_late
    next_due[lane] = false
    for i, member in ipairs(redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', '0', n + 1)) do
      local _, due, id = lanes.parts(member, lane)
      is_late = is_late or i <= n and lease_end_of(prefers_own_ttr and redis.call('HGET', BODY, id) or '') > end_ms
      if i <= n and is_due(due) and not is_late then
        local at = #granted + 1
        granted[at], dues[at], permits[at], reached = id, due, first ~= '' and first .. string.char(i) .. last, member
      else
        next_due[lane] = next_due[lane] or due
      end
    end
    if reached then
      redis.call('ZREMRANGEBYLEX', LANE_ORDER, from, '[' .. reached)
    end
    if want and string.byte(lane) ~= 0 and is_due(next_due[lane]) then
      next_due[lane] = nil -- its turn was set with the offer
    end
  end
  if #granted > 0 then
    lease_jobs(LANE, granted, dues, redis.call('HMGET', BODY, unpack(granted)), permits)
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

-- Lanes that its caller passes over are due: leave a token for the others, four times a second, because the next one to take
-- it may be full, too. Return when to do that again, ms.
function offers.wake_for_full()
  local is_over = (lanes.passed_over_ms or math.huge) <= now_ms
  return is_over and wake_each(250) or lanes.passed_over_ms
end

-- Return the due lanes of a class that may be offered, {lane, turn} each, in the order of their turns. Those of blocked groups
-- are put off until the block ends.
local function free_lanes(class, most)
  local found, scopes, is_free = {}, {}, true
  for _, turn in ipairs(lanes.turns()) do
    local code, its_class, ms = unpack(turn)
    if its_class == class and ms <= now_ms and not (lanes.passes_all or lanes.passed_over[code]) then
      local from, to = lanes.score(code, class, 0), lanes.score(code, class, now_ms)
      local some = redis.call('ZRANGEBYSCORE', TURNS, from, to, 'WITHSCORES', 'LIMIT', '0', most)
      for i = 1, #some, 2 do
        if not is_offered[some[i]] then
          found[#found + 1] = { some[i], lanes.turn_of(some[i + 1]) }
          scopes[#found] = string.sub(some[i], 1, -4)
        end
      end
    end
  end
  local records = #found > 0 and redis.call('HMGET', BLOCKED, unpack(scopes)) or {}
  for i, one in ipairs(found) do
    local until_ms = lanes.end_in(records[i])
    if until_ms > now_ms then
      lanes.set_turn(one[1], until_ms)
      is_free = false
    end
  end
  if not is_free then
    return free_lanes(class, most)
  end
  table.sort(found, function(one, other)
    return one[2] < other[2] or one[2] == other[2] and one[1] < other[1]
  end)
  return found
end

-- Adds offers of lanes, as hand_out() takes them. Their permits have to last longer than the leases of jobs like the first one.
local function add_offers(due)
  local turns = {}
  for _, one in ipairs(due) do
    local lane, n = one[1], one[2]
    offers.list[#offers.list + 1] = { lane, n, one.lease_ms, now_ms + one.lease_ms, one.options }
    offers.offered, is_offered[lane] = offers.offered + n, true
    turns[lane] = one.next_turn * 1000
    name_task_of('\0' .. string.sub(lane, -3, -2))
  end
  lanes.set_turns(turns, 0)
end

-- Offers up to `room` jobs of the due lanes of a class, by the weights of their groups. A caller without limits gets them. A
-- turn is a job, or where there is room for more lanes than a call reads, what each of so many would get. A group of the weight
-- 3 gets three of them; if it gets only one now, its next turn comes after a third of the time. Where more lanes are due, each
-- offers no more than its group's limits let start at once. `each`: number of jobs that a lane will offer, about.
function offers.offer(class, room, turn, each)
  room = want and math.min(room, (want.most or 0) - offers.offered) or room
  turn = turn or math.ceil(room / MOST_LANES)
  local most = room > 0 and math.min(MOST_LANES, math.ceil(room / (each or turn))) or 0
  local due, firsts, found = most > 0 and free_lanes(class, most) or {}, {}, {}
  local left, weights = room, 0
  local function read(one, most)
    local from, behind = lanes.range(one[1], (now_ms + 1) * 1000)
    one.members = redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', '0', most)
  end
  for i, one in ipairs(due) do
    read(one, turn)
    firsts[i] = one.members[1] and select(3, lanes.parts(one.members[1], one[1])) or ''
  end
  for i, body in ipairs(#due > 0 and redis.call('HMGET', BODY, unpack(firsts)) or {}) do
    local one = due[i]
    one.options, one.lease_ms = options_of(body or ''), math.ceil(1.1 * (lease_end_of(body or '') - now_ms))
    local total, burst, weight = string.match(one.options, '"group_limits":%[(%d+),[^,]*,(%d+),(%d+)%]')
    one.weight, one.most = tonumber(weight or 1), room
    for _, number in ipairs(#due == most and { total, burst } or {}) do
      one.most = number ~= '0' and math.min(one.most, number) or one.most
    end
    weights = weights + one.weight
  end
  for _, one in ipairs(due) do
    local share = math.min(left, math.max(turn, math.ceil(left * one.weight / weights)))
    local n = math.min(share, one.most)
    if n > turn then
      read(one, n)
    end
    local part = string.byte(one[1]) == 0 and 0 or math.min(1, share / turn / one.weight)
    one.next_turn = one[2] + math.ceil((now_ms - one[2]) * part)
    one[2], one[3], one[4], one[5] = math.min(n, #one.members), math.huge, '', ''
    found[#found + 1] = one[2] > 0 and one or nil
    left, weights = left - one[2], weights - one.weight
  end
  if #found > 0 then
    local before, take = #ids + offers.offered, want and add_offers or offers.hand_out
    take(found)
    local taken = #ids + offers.offered - before
    offers.offer(class, room - taken, turn, taken / #found)
  end
end

lanes.is_free = not want
mark_tasks(want and want.tasks or {}, is_limited)
mark_tasks(want and want.full or {}, lanes.passed_over)
lanes.passes_all = want and takes_jobs and not want.most -- no job behind a limit can start there now
return offers
