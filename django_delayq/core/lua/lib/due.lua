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

-- Return the place of a parked job in PARKED_ORDER: its task, its own class, its due time, its id.
local function parked_member(body, due, id)
  return task_code_of(body) .. string.char(class_of(with_body_mark(body, IS_PARKED, false)))
    .. struct.pack('>d', math.max(due, 0)) .. id
end

-- Takes a waiting job out of its class.
local function leave_due(body, id)
  local class = class_of(body)
  if class == PARKED then
    redis.call('ZREM', PARKED_ORDER, parked_member(body, tonumber(redis.call('ZSCORE', DUE[PARKED], id)) or 0, id))
  end
  redis.call('ZREM', DUE[class], id)
end

-- A parked job returns to its own class by every change; only a reserve parks jobs (lib/park).
local function put_due(body, score, id)
  local class = class_of(body)
  if class == PARKED then
    leave_due(body, id)
    body = with_body_mark(body, IS_PARKED, false)
    redis.call('HSET', BODY, id, body)
    class = class_of(body)
  end
  use_class(class)
  redis.call('ZADD', DUE[class], score, id)
  has_quarantined = has_quarantined or class == QUARANTINE
end

local function is_due(score)
  return score and math.floor(score / 1000) <= now_ms
end

-- Return when a job that is due at `due` may be handed out, µs: nil while the queue is paused without an end.
local function handed_out_at(due)
  if not due or not paused_out then
    return due
  end
  return rules.paused_out > 0 and math.max(due, rules.paused_out * 1000) or nil
end

-- Return the smallest due score of some classes, by default of the priority classes; nil when no job waits.
local function head(from, to)
  local first
  for class = from or 1, to or QUARANTINE - 1 do
    if is_used(class) then
      local score = tonumber(redis.call('ZRANGE', DUE[class], 0, 0, 'WITHSCORES')[2])
      if score and (not first or score < first) then
        first = score
      end
    end
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
