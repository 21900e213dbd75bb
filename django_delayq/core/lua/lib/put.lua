-- Stores one entry according to its own policies; returns its letter (schedule.lua).
local put_payload_of, change_live, is_known_entry, expect_durable_payloads
local is_ruled = paused_in or rules.max_length
local quota

-- Return why no new job is accepted, or nil.
local function refusal()
  if paused_in then
    return 'p'
  end
  -- The part of the limit that this shard may use; without one, it has none (quota.lua).
  quota = quota or tonumber(redis.call('HGET', META, 'quota') or 0)
  if redis.call('HLEN', BODY) >= quota then
    return 'f'
  end
end

local function schedule(e)
  local old = redis.call('HGET', BODY, e.id)
  if (old or e.record or is_durable(e.key)) and not change_live then
    put_payload_of, change_live, is_known_entry, expect_durable_payloads = make_policies()
  end
  if is_durable(e.key) and is_known_entry(e, old) then
    return 'k' -- also in a closing shard, where such a job may be in the morgue
  elseif closing and not old then
    return 'v' -- before anything is written: this shard may be a tombstone
  end
  e.body = string.sub(e.body, 1, 1) .. task_code(e.task) .. string.sub(e.body, 2)
  if e.record and is_durable(e.key) then
    expect_durable_payloads()
  end
  if old then
    return paused_in and 'p' or change_live(e, old)
  end
  local refused = is_ruled and refusal()
  if refused then
    return refused
  end
  local due = score_at(e.marks % 2 == MARK_DELAY and now_ms + e.ms or e.ms)
  if e.record then
    put_payload_of(e, '')
  end
  redis.call('HSET', BODY, e.id, e.body)
  put_due(e.body, due, e.id)
  return 'c'
end
