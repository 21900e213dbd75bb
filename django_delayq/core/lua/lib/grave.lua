-- Morgue records, one for each generation: id \0 key -> a map: due and buried_at (us), outcome, reason, error_class, error,
-- body, payloads (of a merged job: their records), and of the state (lib/state) failures, reserves, crashes and counts.
-- exports read_record delete_record each_buried each_in_grave mark_live discard_record trim_graves bury find_grave

-- Return a record, or nil if it cannot be read.
function read_record(grave)
  local is_read, record = pcall(cmsgpack.unpack, redis.call('HGET', GRAVE, grave) or '')
  return is_read and type(record) == 'table' and record.body and record or nil
end

function delete_record(grave)
  redis.call('ZREM', MORGUE, grave)
  redis.call('ZREM', MORGUE_ID, grave)
  redis.call('HDEL', GRAVE, grave)
end

-- Calls `each(key)` for the generations in a record: the plain job, or the payloads.
function each_buried(record, each)
  if not is_merged(record.body) then
    return each(key_of(record.body))
  end
  for _, value in ipairs(record.payloads or {}) do
    each(key_of_payload(value))
  end
end

-- Calls `each(key)` for a record of which only the name is known. The name ends in the key of a plain job.
function each_in_grave(grave, each)
  local record = has_durable_payloads and read_record(grave)
  if record then
    each_buried(record, each)
  else
    each(string.sub(grave, -16))
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

function bury(id, body, s, e, payloads)
  if e.outcome ~= 'undecodable' then -- the bytes of an undecodable one are kept as they are
    body = without_quarantine(body)
  end
  local grave, buried = id .. '\0' .. key_of(body), score_at(now_ms)
  local record = {
    due = s.due, buried_at = tonumber(buried), outcome = e.outcome, reason = e.reason or '',
    error_class = e.error_class or '', error = e.error or '', body = body, payloads = payloads, failures = s.failures, reserves = s.reserves,
    crashes = s.crashes, timeouts = s.timeouts, releases = s.releases, buries = s.buries, kicks = s.kicks,
  }
  increment(record, 'releases', math.max(0, s.reserves - s.failures - (e.outcome == 'undecodable' and 1 or 0)))
  increment(record, 'buries')
  redis.call('HSET', GRAVE, grave, cmsgpack.pack(record))
  redis.call('ZADD', MORGUE_ID, 0, grave)
  redis.call('ZADD', MORGUE, buried, grave)
  each_buried(record, function(key)
    mark_end(key, 'buried')
  end)
  -- Deletes more than one for each new record, so that a morgue that is too large shrinks.
  trim_graves(2)
end

-- Return the record that a caller means: of the named generation, or the youngest of the id.
function find_grave(id, key)
  if key ~= '' then
    local grave = id .. '\0' .. key
    return redis.call('HEXISTS', GRAVE, grave) == 1 and grave or nil
  end
  local youngest, latest
  for _, grave in ipairs(redis.call('ZRANGEBYLEX', MORGUE_ID, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 250)) do
    local buried = tonumber(redis.call('ZSCORE', MORGUE, grave))
    if buried and (not latest or buried > latest) then
      youngest, latest = grave, buried
    end
  end
  return youngest
end
