-- The due sets. Meta records which priority classes were ever used, so that the others are never read.
local function is_used(class)
  return math.floor(classes / 2 ^ (class - 1)) % 2 == 1
end

local function use_class(class)
  if not is_used(class) then
    classes = classes + 2 ^ (class - 1)
    -- At once and not at the end: a script that dies in between leaves a class too many, never one too few.
    redis.call('HSET', META, 'classes', classes)
  end
end

-- True if a job entered the class of those that wait for quarantine.
local has_quarantined = false

local function is_due(score)
  return score and math.floor(score / 1000) <= now_ms
end

-- Lanes: a lane has the waiting jobs of one group, task and class that are behind a limit, whatever their due times. Its name
-- is '<group>\0<task code><class>'. LANE_ORDER has its jobs by due time; TURNS has, of each lane that has jobs, when it may
-- be offered to a limiter (lib/lanes): when its first job is due, or later. The scores of a task and class are a span of
-- TURNS of their own: 9 bits of the task's code and 4 of the class are in front of the ms since TURNS_BEGIN. So a task that
-- is blocked is passed over at once, however many lanes it has.
local TURN_SPAN, TURNS_BEGIN = 2 ^ 40, 1600000000000

local function lane_of(body)
  return '\0' .. task_code_of(body) .. string.char(class_of(with_body_mark(body, IN_LANE, false)))
end

-- Return the place of a job in LANE_ORDER.
local function lane_member(body, due, id)
  return lane_of(body) .. struct.pack('>d', math.max(tonumber(due), 0)) .. id
end

-- Return the bounds of a lane in LANE_ORDER, but not of jobs that are due at `before` (us) or later.
local function lane_range(lane, before)
  return '[' .. lane, '(' .. lane .. (before and struct.pack('>d', before) or '\255')
end

local function first_due(lane)
  local from, behind = lane_range(lane)
  local member = redis.call('ZRANGEBYLEX', LANE_ORDER, from, behind, 'LIMIT', 0, 1)[1]
  return member and (struct.unpack('>d', member, #lane + 1))
end

-- Return the scores in TURNS between which the lanes of a task and a class are.
local function turn_span(code, class)
  local number = struct.unpack('<I2', code) % 512 * 16 + class
  return number * TURN_SPAN, (number + 1) * TURN_SPAN
end

-- Sets when a lane is offered: not before the moment, and not before its first job is due. Jobs without a group are offered
-- by their due times.
local function set_turn(lane, ms)
  local due = first_due(lane)
  ms = string.byte(lane) == 0 and 0 or ms
  if not due then
    redis.call('ZREM', TURNS, lane)
  else
    local class = string.byte(lane, -1)
    local from, behind = turn_span(string.sub(lane, -3, -2), class)
    use_class(class)
    local turn = math.max(ms, math.floor(due / 1000)) - TURNS_BEGIN
    redis.call('ZADD', TURNS, text(math.max(from, math.min(from + turn, behind - 1))), lane)
  end
end

-- Return the turn in a score of TURNS, ms.
local function turn_of(score)
  return tonumber(score) % TURN_SPAN + TURNS_BEGIN
end

-- BLOCKED: scope -> when the limiter said something of it, and until when it blocks the scope, ms. A scope is '' (the whole
-- queue) or '\0<task code>'.
local function blocked_until(scope)
  local record = redis.call('HGET', BLOCKED, scope)
  return record and select(2, struct.unpack('<dd', record)) or 0
end

-- Calls visit(code, class, ms) for each task and class with lanes: when the first of these may be offered.
local function each_turn(visit)
  local from, queue_ms = '-inf', blocked_until('')
  repeat
    local first = redis.call('ZRANGEBYSCORE', TURNS, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if first[1] then
      local code, class = string.sub(first[1], -3, -2), string.byte(first[1], -1)
      visit(code, class, math.max(turn_of(first[2]), queue_ms, blocked_until('\0' .. code)))
      from = text(math.floor(tonumber(first[2]) / TURN_SPAN + 1) * TURN_SPAN)
    end
  until not first[1]
end

local function join_lanes(ids, dues, bodies)
  local members, scores, is_first = {}, {}, {}
  for i, id in ipairs(ids) do
    local lane, at = lane_of(bodies[i]), 2 * i - 1
    if is_first[lane] == nil then
      is_first[lane] = string.byte(lane) == 0 or not is_due(first_due(lane))
    end
    members[at], members[at + 1] = 0, lane_member(bodies[i], dues[i], id)
    scores[at], scores[at + 1] = text(dues[i]), id
  end
  use_class(LANE)
  redis.call('ZADD', LANE_ORDER, unpack(members))
  redis.call('ZADD', DUE[LANE], unpack(scores))
  for lane, is_earlier in pairs(is_first) do
    if is_earlier then -- the turn of a group with due jobs stays
      set_turn(lane, 0)
    end
  end
end

-- Takes a waiting job out of its class. To be called before its body changes, if it is in a lane.
local function leave_due(body, id)
  local class = class_of(body)
  local due = class == LANE and redis.call('ZSCORE', DUE[LANE], id)
  if due then
    local lane = lane_of(body)
    redis.call('ZREM', LANE_ORDER, lane_member(body, due, id))
    set_turn(lane, turn_of(redis.call('ZSCORE', TURNS, lane) or 0))
  end
  redis.call('ZREM', DUE[class], id)
end

-- Lets a job wait, or moves one that waits with the same body.
local function put_due(body, score, id)
  local class = class_of(body)
  if class == LANE then
    leave_due(body, id)
    join_lanes({ id }, { tonumber(score) }, { body })
  else
    use_class(class)
    redis.call('ZADD', DUE[class], score, id)
  end
  has_quarantined = has_quarantined or class == QUARANTINE
end

-- Return when a job that is due at `due` may be handed out, µs: nil while the queue is paused without an end.
local function handed_out_at(due)
  if not due or not paused_out then
    return due
  end
  return rules.paused_out > 0 and math.max(due, rules.paused_out * 1000) or nil
end

-- Tasks whose lanes this call passes over (code -> true), and when the first of them may be offered, ms.
local passed_over, passed_over_ms = {}, nil

-- Return when the first job or lane of some classes is due, by default of the priority classes, us; nil when no job waits.
local function head(from, to)
  from, to = from or 1, to or QUARANTINE - 1
  local first
  for class = from, to do
    if is_used(class) then
      local score = tonumber(redis.call('ZRANGE', DUE[class], 0, 0, 'WITHSCORES')[2])
      if score and (not first or score < first) then
        first = score
      end
    end
  end
  if is_used(LANE) then
    each_turn(function(code, class, ms)
      if class >= from and class <= to then
        if passed_over[code] then
          passed_over_ms = math.min(passed_over_ms or ms, ms)
        else
          first = math.min(first or math.huge, ms * 1000)
        end
      end
    end)
  end
  return first
end

local function wake()
  if channel ~= '' then
    redis.call('PUBLISH', channel, shard)
  elseif not redis.call('LPOS', WAKE, shard) then
    redis.call('RPUSH', WAKE, shard)
  end
end

-- Due work remains, so another consumer should be woken. A channel wakes all of them, so not at every reserve.
local function wake_next()
  local RELAY_MS = 20
  if channel ~= '' then
    if now_ms - (tonumber(redis.call('HGET', META, 'relayed')) or 0) < RELAY_MS then
      return
    end
    redis.call('HSET', META, 'relayed', text(now_ms))
  end
  wake()
end

local function drop_wake()
  if channel == '' then
    redis.call('LREM', WAKE, 0, shard)
  end
end

local function wake_if_earlier(before)
  local after = head()
  if has_quarantined or (after and (not before or after < before)) then
    wake()
  end
end
