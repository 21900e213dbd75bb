-- The end of an attempt whose work is done, and what every settlement reads: the worker, and the ids of the entries.
local settler = ARGV[3]

local function ids_of(entries)
  local ids = {}
  for i, e in ipairs(entries) do
    ids[i] = e.id
  end
  return ids
end

-- Mark what an attempt held as done; to be called before its state is deleted.
local function mark_run(id, taken)
  if #taken > 0 then
    local _, fields = in_hand(id, taken)
    mark_payloads(fields)
    return
  end
  local body = redis.call('HGET', BODY, id) or ''
  if not is_merged(body) then
    mark_end(key_of(body), 'done')
  end
end

-- What the attempt of a merged job leaves is a generation of its own, due now. Its key follows from the old one, so that
-- inbox and morgue treat it as another job, with the time of its creation (job.created_ms). Its end is not awaited, so
-- it is not durable.
local function put_rest(id, body, gated)
  local old = key_of(body)
  local key = string.char((string.byte(old) or 0) % 128) .. string.sub(old, 2, 7) .. string.sub(digest_of_bytes(old), 8)
  body = without_marks(with_key(body, key .. string.rep('\0', 16 - #key)))
  if gated then
    local _, gated_body = read_gate(gated)
    body = with_class_of(body, gated_body)
  end
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HSET', BODY, id, body)
  redis.call('HDEL', GATE, id)
  put_due(body, score_at(now_ms), id)
end

-- The attempt and its payloads are done; payloads beyond its limit get an attempt of their own.
local function finish_run(id, taken, gated)
  finish_payloads(id, taken, gated)
  if left_some(taken) and has_payloads(id) then
    put_rest(id, redis.call('HGET', BODY, id) or '', gated)
  else
    end_run(id, gated)
  end
end
