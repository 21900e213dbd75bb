-- Stores entries of schedule.lua and bulk.lua, each according to its own policies. An entry is a map: id, task, body
-- without the number of its task, ms (when it is due, or with is_delay in how many ms), conflict (0 merge, 2 ignore, 3
-- error; missing = replace), due_policy (0 keep, 2 earliest, 3 latest, 4 inherit; missing = replace), keeps_retries (the
-- retry state stays). Of merged jobs also digest, score_policy (0 min, 1 max, 2 first, 3 last), payload_policy (0 all, 1
-- last, 2 first), max_payloads, record (of the payload, without its arrival), score_is_now (its score is the time now, in
-- Unix seconds).
local MERGE, IGNORE, ERROR = 0, 2, 3
local KEEP, EARLIEST, LATEST, INHERIT = 0, 2, 3, 4
local ALL, LAST = 0, 1

local function due_of(e)
  return score_at(e.is_delay and now_ms + e.ms or e.ms)
end

local function make_policies()
  -- include state payload gate generation policies
end

local put_payload_of, change_live, is_known, expect_durable_payloads
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

-- Stores an entry; returns its letter (schedule.lua).
local function schedule(e)
  local old = redis.call('HGET', BODY, e.id)
  local key = e.record and string.sub(e.record, 9, 24) or string.sub(e.body, 2, 17)
  if (old or e.record or is_durable(key)) and not change_live then
    put_payload_of, change_live, is_known, expect_durable_payloads = make_policies()
  end
  if is_durable(key) and is_known(e.id, key, e.digest or '', old) then
    return 'k' -- also in a closing shard, where such a job may be in the morgue
  elseif closing and not old then
    return 'v' -- before anything is written: this shard may be a tombstone
  end
  e.body = string.sub(e.body, 1, 1) .. task_code(e.task) .. string.sub(e.body, 2)
  if e.record and is_durable(key) then
    expect_durable_payloads()
  end
  if old then
    return paused_in and 'p' or change_live(e, old)
  end
  local refused = is_ruled and refusal()
  if refused then
    return refused
  end
  local due = due_of(e)
  if e.record then
    put_payload_of(e, '')
  end
  redis.call('HSET', BODY, e.id, e.body)
  put_due(e.body, due, e.id)
  return 'c'
end
