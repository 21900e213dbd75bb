-- Lanes: a lane has the waiting jobs of one group, task and class that are behind a limit, whatever their due times. Its name
-- is '<group>\0<task code><class>'. LANE_ORDER has its jobs by due time; TURNS has, of each lane that has jobs, when it may
-- be offered to a limiter (lib/offers): when its first job is due, or later. The scores of a task and class are a span of
-- TURNS of their own: 9 bits of the task's code and 4 of the class are in front of the ms since TURNS_BEGIN. So a task that
-- is blocked is passed over at once, however many lanes it has.
-- exports get_lanes
local lanes

-- For speed, because most shards have none.
local function make()
  local TURN_SPAN, TURNS_BEGIN = 2 ^ 40, 1600000000000
  -- passed_over: the codes of tasks whose lanes this call passes over (code -> true).
  lanes = { LAST_TURN = TURNS_BEGIN + TURN_SPAN - 1, passed_over = {} }

  function lanes.of(body)
    local flags, group = flags_of(body), group_of(body)
    return group .. '\0' .. task_code_of(body) .. string.char(flags >= IS_QUARANTINED and QUARANTINE or flags % 8 + 1)
  end

  -- Return the place of a job in LANE_ORDER.
  function lanes.member(body, due, id)
    return lanes.of(body) .. struct.pack('>d', math.max(tonumber(due), 0)) .. id
  end

  -- Return the bounds of a lane in LANE_ORDER, but not of jobs that are due at `before` (us) or later.
  function lanes.range(lane, before)
    return '[' .. lane, '(' .. lane .. (before and struct.pack('>d', before) or '\255')
  end

  -- Return the due time in a member of LANE_ORDER; and its id.
  function lanes.due_of(lane, member)
    return (struct.unpack('>d', member, #lane + 1))
  end

  function lanes.id_of(lane, member)
    return string.sub(member, #lane + 9)
  end

  function lanes.first_due(lane)
    local from, behind = lanes.range(lane)
    local member = redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', 0, 1)[1]
    return member and lanes.due_of(lane, member)
  end

  -- Return the scores in TURNS between which the lanes of a task and a class are.
  function lanes.span(code, class)
    local number = struct.unpack('<I2', code) % 512 * 16 + class
    return number * TURN_SPAN, (number + 1) * TURN_SPAN
  end

  -- Sets when lanes are offered (lane -> due time of its first job, us, or false): not before the moment, and not before that
  -- job is due. Jobs without a group are offered by their due times.
  function lanes.set_turns(first_dues, ms)
    local scores, gone = {}, {}
    for lane, due in pairs(first_dues) do
      lanes.turns = nil
      if due then
        local class, at = string.byte(lane, -1), #scores + 1
        local from, behind = lanes.span(string.sub(lane, -3, -2), class)
        local turn = math.max(string.byte(lane) == 0 and 0 or ms, math.floor(due / 1000)) - TURNS_BEGIN
        use_class(class)
        scores[at], scores[at + 1] = text(math.max(from, math.min(from + turn, behind - 1))), lane
      else
        gone[#gone + 1] = lane
      end
    end
    if #scores > 0 then
      redis.call('ZADD', TURNS, unpack(scores))
    end
    if #gone > 0 then
      redis.call('ZREM', TURNS, unpack(gone))
    end
  end

  function lanes.set_turn(lane, ms)
    lanes.set_turns({ [lane] = lanes.first_due(lane) or false }, ms)
  end

  -- Return the score in TURNS of a moment, ms, in the span that begins at `from`.
  function lanes.score(from, ms)
    return text(from + ms - TURNS_BEGIN)
  end

  -- Return the turn in a score of TURNS, ms.
  function lanes.turn_of(score)
    return tonumber(score) % TURN_SPAN + TURNS_BEGIN
  end

  -- BLOCKED: scope -> when the limiter said something of it, and until when it blocks the scope, ms. A scope is '' (the whole
  -- queue), the limit of a task, or '<group>\0'; '\0<task code>' -> that limit. A caller without limits is not blocked.
  local function end_in(record)
    return record and not lanes.is_free and select(2, struct.unpack('<dd', record)) or 0
  end

  function lanes.blocked_until(scope)
    return end_in(redis.call('HGET', BLOCKED, scope))
  end

  local function read_turns()
    local read, from = {}, '-inf'
    repeat
      local first = redis.call('ZRANGEBYSCORE', TURNS, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if first[1] then
        local code, class = string.sub(first[1], -3, -2), string.byte(first[1], -1)
        local of_queue, limit = unpack(redis.call('HMGET', BLOCKED, '', '\0' .. code))
        local of_task = limit and lanes.blocked_until(limit) or 0
        read[#read + 1] = { code, class, math.max(lanes.turn_of(first[2]), end_in(of_queue), of_task), limit }
        from = text(math.floor(tonumber(first[2]) / TURN_SPAN + 1) * TURN_SPAN)
      end
    until not first[1]
    return read
  end

  -- Calls visit(code, class, ms, limit) for each task and class with lanes: when the first of these may be offered. They are
  -- read once, until turns or blocks change.
  function lanes.each_turn(visit)
    lanes.turns = lanes.turns or read_turns()
    for _, one in ipairs(lanes.turns) do
      visit(unpack(one))
    end
  end

  -- Return the smaller one of `first` and when the first lane of some classes may be offered, us. Lanes that are passed over
  -- do not count, but `passed_over_ms` is when the first of them may be offered.
  function lanes.head(from, to, first)
    lanes.each_turn(function(code, class, ms)
      if class >= from and class <= to and lanes.passed_over[code] then
        lanes.passed_over_ms = math.min(lanes.passed_over_ms or ms, ms)
      elseif class >= from and class <= to then
        first = math.min(first or math.huge, ms * 1000)
      end
    end)
    return first
  end

  -- Return the lanes of a group, '<group>\0', that have jobs.
  function lanes.of_group(scope)
    local found, from, behind = {}, '[' .. scope, '(' .. string.sub(scope, 1, -2) .. '\1'
    repeat
      local member = redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', 0, 1)[1]
      if member then
        found[#found + 1] = string.sub(member, 1, #scope + 3)
        from = '(' .. found[#found] .. '\255'
      end
    until not member
    return found
  end

  -- Forgets what a limiter said of groups more than a minute ago: no older reply is on its way any more.
  function lanes.forget_groups()
    local some = redis.call('HRANDFIELD', BLOCKED, 250, 'WITHVALUES')
    for i = 1, #some, 2 do
      local at, until_ms = struct.unpack('<dd', some[i + 1] .. string.rep('\0', 16))
      if string.find(some[i], '^%Z.*%z$') and math.max(at / 1000, until_ms) < now_ms - 60000 then
        redis.call('HDEL', BLOCKED, some[i])
      end
    end
  end

  function lanes.join(ids, dues, bodies)
    local members, scores, is_first = {}, {}, {}
    for i, id in ipairs(ids) do
      local lane, at = lanes.of(bodies[i]), 2 * i - 1
      if is_first[lane] == nil then
        is_first[lane] = string.byte(lane) == 0 or not is_due(lanes.first_due(lane))
      end
      members[at], members[at + 1] = 0, lanes.member(bodies[i], dues[i], id)
      scores[at], scores[at + 1] = text(dues[i]), id
    end
    use_class(LANE)
    redis.call('ZADD', LANE_ORDER, unpack(members))
    redis.call('ZADD', DUE[LANE], unpack(scores))
    for lane, is_earlier in pairs(is_first) do
      if is_earlier then -- the turn of a group with due jobs stays
        lanes.set_turn(lane, 0)
      end
    end
  end

  -- To be called before the body of the job changes.
  function lanes.leave(body, id)
    local due = redis.call('ZSCORE', DUE[LANE], id)
    if due then
      local lane = lanes.of(body)
      redis.call('ZREM', LANE_ORDER, lanes.member(body, due, id))
      lanes.set_turn(lane, lanes.turn_of(redis.call('ZSCORE', TURNS, lane) or 0))
    end
  end
end

function get_lanes()
  if not lanes then
    make()
  end
  return lanes
end
