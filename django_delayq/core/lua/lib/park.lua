-- Limits of tasks. The caller of a reserve names the tasks that are limited, and how many jobs of each it may have now. A due
-- job beyond that is *parked*: it waits in a class of its own, so that the head of the other classes is never a job that
-- cannot be handed out. PARKED_ORDER has the parked jobs by task, class and due time. A reserve by a caller that may have
-- jobs of a task brings the first of them back into their classes before it hands jobs out.
-- The inside of a function that is called only where a limit is named or a job is parked (lib/reserve), with the classes
-- that the reserve serves and the limits of its caller: {left = jobs, is_local = true if another consumer may have room,
-- tasks = names} each.
-- The limits in the order of the caller; two bytes that stand for a task name -> its limit. Nothing when none is named.
local limits, limit_of
-- A call parks no more than MOST jobs, because these take Redis several milliseconds.
local parking = { moved = 0, others_may_have_room = false, MOST = 1000 }

local function read_limits(packed)
  limits, limit_of = cmsgpack.unpack(packed), {}
  local names, limits_of_names = {}, {}
  for _, limit in ipairs(limits) do
    for _, name in ipairs(limit.tasks) do
      names[#names + 1] = name
      limits_of_names[#names] = limit
    end
  end
  for i, number in ipairs(redis.call('HMGET', TASK, unpack(names))) do
    if number then
      limit_of[struct.pack('<I2', tonumber(number))] = limits_of_names[i]
    end
  end
end

-- Bounds of the parked jobs of a task in those classes that this call serves. Others take what waits for quarantine back
-- too: a process that runs such jobs starts only when one of them is overdue.
local function parked_range(code)
  local last = served[2] == QUARANTINE - 1 and QUARANTINE or served[2]
  return '[' .. code .. string.char(served[1]), '(' .. code .. string.char(last + 1)
end

-- Brings parked jobs back: up to `most` of each task that is not limited here, or as many as its limit allows.
function parking.take_back(most)
  local from = '-'
  local first = redis.call('ZRANGEBYLEX', PARKED_ORDER, from, '+', 'LIMIT', 0, 1)[1]
  while first do
    local code = string.sub(first, 1, 2)
    local limit = limit_of and limit_of[code]
    local n = limit and math.min(limit.left, most) or most
    local low, high = parked_range(code)
    for _, member in ipairs(n > 0 and redis.call('ZRANGEBYLEX', PARKED_ORDER, low, high, 'LIMIT', 0, n) or {}) do
      local id = string.sub(member, 12)
      local body, due = redis.call('HGET', BODY, id), redis.call('ZSCORE', DUE[PARKED], id)
      if body and due then
        put_due(body, due, id)
      end
    end
    first = redis.call('ZRANGEBYLEX', PARKED_ORDER, '(' .. code .. '\255', '+', 'LIMIT', 0, 1)[1]
  end
end

local function park(class, ids, scores, bodies)
  local dues, members, fields = {}, {}, {}
  for i, id in ipairs(ids) do
    local at = 2 * i - 1
    dues[at], dues[at + 1] = text(scores[i]), id
    members[at], members[at + 1] = 0, parked_member(bodies[i], scores[i], id)
    fields[at], fields[at + 1] = id, bodies[i]
  end
  use_class(PARKED)
  redis.call('HSET', BODY, unpack(fields))
  redis.call('ZADD', PARKED_ORDER, unpack(members))
  redis.call('ZADD', DUE[PARKED], unpack(dues))
  redis.call('ZREM', DUE[class], unpack(ids))
  parking.moved = parking.moved + #ids
end

-- Return those of some due jobs that may be handed out, and park the others.
function parking.within_limits(class, ids, scores, bodies)
  if not limits then
    return ids, scores, bodies
  end
  local kept, excess = { {}, {}, {} }, { {}, {}, {} }
  for i, id in ipairs(ids) do
    local body, list = bodies[i], kept
    local limit = body and limit_of[task_code_of(body)]
    if limit and limit.left > 0 then
      limit.left = limit.left - 1
    elseif limit and with_body_mark(body, IS_PARKED, true) ~= body then
      body, list = with_body_mark(body, IS_PARKED, true), excess
      parking.others_may_have_room = parking.others_may_have_room or limit.is_local
    end
    local n = #list[1] + 1
    list[1][n], list[2][n], list[3][n] = id, scores[i], body
  end
  if #excess[1] > 0 then
    park(class, unpack(excess))
  end
  return unpack(kept)
end

-- Return how many jobs this call parked, and how many are parked for each limit; nothing if the caller names none.
function parking.numbers()
  if not limits then
    return nil
  end
  local numbers, place_of = { parking.moved }, {}
  for i, limit in ipairs(limits) do
    numbers[i + 1], place_of[limit] = 0, i + 1
  end
  for code, limit in pairs(is_used(PARKED) and limit_of or {}) do
    local place = place_of[limit]
    numbers[place] = numbers[place] + redis.call('ZLEXCOUNT', PARKED_ORDER, parked_range(code))
  end
  return numbers
end

if served.limits ~= '' then
  read_limits(served.limits)
end
return parking
