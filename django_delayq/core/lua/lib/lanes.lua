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

  -- Return what a member of LANE_ORDER has: its lane, if it is not known before, due time and id. The name of a lane ends before
  -- the due time.
  function lanes.parts(member, lane)
    lane = lane or string.match(member, '^%Z*%z...')
    return lane, (struct.unpack('>d', member, #lane + 1)), string.sub(member, #lane + 9)
  end

  -- Return the parts of the first member between two places of LANE_ORDER, nil if there is none.
  function lanes.first(from, behind)
    local member = redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', '0', '1')[1]
    if member then
      return lanes.parts(member)
    end
  end

  function lanes.first_due(lane)
    return (select(2, lanes.first(lanes.range(lane))))
  end

  -- Return the score in TURNS of a moment, ms, in the span of a task and a class.
  function lanes.score(code, class, ms)
    local number = struct.unpack('<I2', code) % 512 * 16 + class
    return text(number * TURN_SPAN + math.max(0, math.min(ms - TURNS_BEGIN, TURN_SPAN - 1)))
  end

  -- Sets when lanes are offered (lane -> due time of its first job, us, or false): not before the moment, and not before that
  -- job is due. Jobs without a group are offered by their due times.
  function lanes.set_turns(first_dues, ms)
    local scores, gone = {}, {}
    for lane, due in pairs(first_dues) do
      lanes.turns_read = nil
      if due then
        local class, at = string.byte(lane, -1), #scores + 1
        local turn = math.max(string.byte(lane) == 0 and 0 or ms, math.floor(due / 1000))
        use_class(class)
        scores[at], scores[at + 1] = lanes.score(string.sub(lane, -3, -2), class, turn), lane
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

  -- Return the turn in a score of TURNS, ms.
  function lanes.turn_of(score)
    return tonumber(score) % TURN_SPAN + TURNS_BEGIN
  end

  -- BLOCKED: scope -> when the limiter said something of it, and until when it blocks the scope, ms. A scope is '' (the whole
  -- queue), the limit of a task, or '<group>\0'; '\0<task code>' -> that limit. A caller without limits is not blocked.
  function lanes.end_in(record)
    return record and not lanes.is_free and select(2, struct.unpack('<dd', record)) or 0
  end

  -- Return {code, class, ms, limit} for each task and class with lanes: when the first of these may be offered. They are
  -- read once, until turns or blocks change.
  function lanes.turns()
    if lanes.turns_read then
      return lanes.turns_read
    end
    local read, from = {}, '-inf'
    repeat
      local first = redis.call('ZRANGEBYSCORE', TURNS, from, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
      if first[1] then
        local code, class = string.sub(first[1], -3, -2), string.byte(first[1], -1)
        local of_queue, limit = unpack(redis.call('HMGET', BLOCKED, '', '\0' .. code))
        local of_task = limit and lanes.end_in(redis.call('HGET', BLOCKED, limit)) or 0
        read[#read + 1] = { code, class, math.max(lanes.turn_of(first[2]), lanes.end_in(of_queue), of_task), limit }
        from = text(math.floor(tonumber(first[2]) / TURN_SPAN + 1) * TURN_SPAN)
      end
    until not first[1]
    lanes.turns_read = read
    return read
  end

  -- Return the smaller one of `first` and when the first lane of some classes may be offered, us. Lanes that are passed over
  -- do not count, but `passed_over_ms` is when the first of them may be offered.
  function lanes.head(from, to, first)
    for _, turn in ipairs(lanes.turns()) do
      local code, class, ms = unpack(turn)
      if class >= from and class <= to and (lanes.passes_all or lanes.passed_over[code]) then
        lanes.passed_over_ms = math.min(lanes.passed_over_ms or ms, ms)
      elseif class >= from and class <= to then
        first = math.min(first or math.huge, ms * 1000)
      end
    end
    return first
  end

  -- Return the lanes of a scope that have jobs, if it is a group.
  function lanes.of_group(scope)
    local found, from, behind = {}, '[' .. scope, '(' .. string.sub(scope, 1, -2) .. '\1'
    local lane = string.find(scope, '^%Z+%z$') and lanes.first(from, behind)
    while lane do
      found[#found + 1] = lane
      lane = lanes.first('(' .. lane .. '\255', behind)
    end
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
      members[at], members[at + 1] = '0', lanes.member(bodies[i], dues[i], id)
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
