#!lua flags=allow-oom
-- A waiting job is gone; a running one is marked, its gated content dropped: its failure or expiry ends it.
-- ARGV    3 id; 4 task, or '' for any
-- Returns cancelled, stopping, taken (a live job of another task), '' (no live job) or v (none in a closed shard).
-- Events  cancelled
-- include keys clock begin sweep window body state due wake bytes payload gate
local seen = replay()
if seen then
  return seen
end
local id, task = ARGV[3], ARGV[4]

local function stop_run(body)
  local s = read_state(redis.call('HGET', STATE, id))
  redis.call('HDEL', GATE, id)
  if is_merged(body) then
    drop_gated_payloads(id, s.taken)
  end
  set_flag(s, STOPPING)
  redis.call('HSET', STATE, id, pack_state(s))
  return 'stopping'
end

local function cancel()
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or ''
  elseif task ~= '' and not is_task_of(body, task) then
    return 'taken'
  elseif redis.call('ZSCORE', LEASE, id) then
    return stop_run(body)
  end
  redis.call('ZREM', DUE[class_of(body)], id)
  if is_merged(body) then
    drop_payloads(id)
  end
  end_run(id)
  count('cancelled', 1)
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', 'cancelled', 'id', id, 'task', task_name(task_code_of(body)) or '')
  return 'cancelled'
end

local reply = cancel()
if reply ~= 'v' then
  remember(reply)
end
return reply
