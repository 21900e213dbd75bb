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

local function put_due(body, score, id)
  local class = class_of(body)
  use_class(class)
  redis.call('ZADD', DUE[class], score, id)
  has_quarantined = has_quarantined or class == QUARANTINE
end

-- Return when a job that is due at `due` may be handed out, µs: nil while the queue is paused without an end.
local function handed_out_at(due)
  if not due or not paused_out then
    return due
  end
  return out_until > 0 and math.max(due, out_until * 1000) or nil
end

-- Return the smallest due score of some classes, by default of all that do not wait for quarantine; nil when no job
-- waits.
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
