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

-- include lanes

-- Takes a waiting job out of its class. To be called before its body changes, if it is in a lane.
local function leave_due(body, id)
  local class = class_of(body)
  if class == LANE then
    get_lanes().leave(body, id)
  end
  redis.call('ZREM', DUE[class], id)
end

-- Lets a job wait, or moves one that waits with the same body.
local function put_due(body, score, id)
  local class = class_of(body)
  if class == LANE then
    leave_due(body, id)
    get_lanes().join({ id }, { tonumber(score) }, { body })
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

-- Return when the first job or lane of some classes is due, by default of the priority classes, us; nil when no job waits.
local function head(from, to)
  from, to = from or 1, to or QUARANTINE - 1
  local first
  for class = from, to do
    if is_used(class) then
      local score = tonumber(redis.call('ZRANGE', DUE[class], '0', '0', 'WITHSCORES')[2])
      if score and (not first or score < first) then
        first = score
      end
    end
  end
  if is_used(LANE) then
    first = get_lanes().head(from, to, first)
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

-- Wakes a consumer, but only once in so many ms. Return when it may be woken so again, ms.
local function wake_each(ms)
  local relayed_ms = tonumber(redis.call('HGET', META, 'relayed')) or 0
  if now_ms - relayed_ms >= ms then
    redis.call('HSET', META, 'relayed', text(now_ms))
    wake()
    relayed_ms = now_ms
  end
  return relayed_ms + ms
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
