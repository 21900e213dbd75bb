-- Morgue records, one for each generation: id \0 key -> '<ddI2I2I2' due us, buried at us, failures, reserves, crashes,
-- 8 bytes with its counts (lib/state), '<Bc0Bc0Bc0I2c0I4c0' outcome, reason, error class, error, body; the payloads of a
-- merged job are framed behind it.
-- exports counts_of_record body_of_record delete_record each_buried each_in_grave mark_live discard_record trim_graves
-- exports bury each_grave_of find_grave
local GRAVE_TEXTS = '<Bc0Bc0Bc0I2c0I4c0'

function counts_of_record(record)
  return string.sub(record, 23, 30)
end

-- Return the body of a record, and its payloads.
function body_of_record(record)
  local fields = { struct.unpack(GRAVE_TEXTS, record, 31) }
  return fields[#fields - 1], string.sub(record, fields[#fields])
end

local function grave_of(id, body)
  local key = string.sub(body, 4, 19)
  -- A broken body may end inside its key; the record's name must be as long as every other.
  return id .. '\0' .. key .. string.rep('\0', 16 - #key)
end

function delete_record(grave)
  redis.call('ZREM', MORGUE, grave)
  redis.call('ZREM', MORGUE_ID, grave)
  redis.call('HDEL', GRAVE, grave)
end

-- Calls `each(key)` for the generations in a record: the plain job, or the framed payloads.
function each_buried(body, payloads, each)
  if not is_merged(body) then
    return each(key_of(body))
  elseif payloads == '' then
    return
  end
  local n, at = struct.unpack('<I4', payloads)
  for _ = 1, n do
    local value
    value, at = struct.unpack('<I4c0', payloads, at)
    each(key_of_payload(value))
  end
end

-- Calls `each(key)` for a record of which only the name is known. The name ends in the key of a plain job.
function each_in_grave(grave, each)
  if not has_durable_payloads then
    return each(string.sub(grave, -16))
  end
  local record = redis.call('HGET', GRAVE, grave)
  if record then
    local body, payloads = body_of_record(record)
    each_buried(body, payloads, each)
  end
end

-- Written at once, see lib/marks.
function mark_live(key)
  if is_durable(key) then
    redis.call('HSET', MARKS, key, struct.pack('<Bd', 3, tonumber(score_at(now_ms))))
  end
end

-- Deletes a record: its job can no longer be kicked.
function discard_record(grave)
  each_in_grave(grave, function(key)
    mark_end(key, 'done')
  end)
  delete_record(grave)
end

-- Deletes the oldest records, up to `most`, as long as they are too many or too old for the shard's rules.
function trim_graves(most)
  local ttl_ms = rules.morgue_ttl_ms
  local excess = rules.morgue_max and redis.call('ZCARD', MORGUE) - rules.morgue_max or 0
  if excess <= 0 and not ttl_ms then
    return
  end
  local oldest, trimmed = redis.call('ZRANGE', MORGUE, 0, most - 1, 'WITHSCORES'), 0
  for i = 1, #oldest, 2 do
    local is_old = ttl_ms and math.floor(tonumber(oldest[i + 1]) / 1000) <= now_ms - ttl_ms
    if trimmed >= excess and not is_old then
      break
    end
    discard_record(oldest[i])
    trimmed = trimmed + 1
  end
  count('trimmed', trimmed)
end

-- Return the counts of a job that is buried now.
local function counts_at_end(s, outcome)
  local released = math.max(0, s.reserves - s.failures - (outcome == 'undecodable' and 1 or 0))
  return add_to_counts(add_to_counts(s.counts, 'releases', released), 'buries', 1)
end

function bury(id, body, s, e, payloads)
  if e.outcome ~= 'undecodable' then -- the bytes of an undecodable one are kept as they are
    body = without_marks(body)
  end
  local grave, buried = grave_of(id, body), score_at(now_ms)
  redis.call('HSET', GRAVE, grave, struct.pack('<ddI2I2I2', s.due, tonumber(buried), s.failures, s.reserves, s.crashes)
    .. counts_at_end(s, e.outcome) .. struct.pack(GRAVE_TEXTS, #e.outcome, e.outcome, #e.reason, e.reason,
      #e.error_class, e.error_class, #e.error, e.error, #body, body) .. payloads)
  redis.call('ZADD', MORGUE_ID, 0, grave)
  redis.call('ZADD', MORGUE, buried, grave)
  each_buried(body, payloads, function(key)
    mark_end(key, 'buried')
  end)
  -- Deletes more than one for each new record, so that a morgue that is too large shrinks.
  trim_graves(2)
end

-- Calls `each(grave, buried at us)` for the records of an id, up to 250.
function each_grave_of(id, each)
  for _, grave in ipairs(redis.call('ZRANGEBYLEX', MORGUE_ID, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 250)) do
    local buried = redis.call('ZSCORE', MORGUE, grave)
    if buried then
      each(grave, buried)
    end
  end
end

-- Return the record that a caller means: of the named generation, or the youngest of the id.
function find_grave(id, key)
  if key ~= '' then
    local grave = id .. '\0' .. key
    return redis.call('HEXISTS', GRAVE, grave) == 1 and grave or nil
  end
  local youngest, latest
  each_grave_of(id, function(grave, buried)
    if not latest or tonumber(buried) > latest then
      youngest, latest = grave, tonumber(buried)
    end
  end)
  return youngest
end
