#!lua flags=allow-oom
-- A waiting job is gone; a running one is marked, its gated content dropped: its failure or expiry ends it.
-- ARGV    3 id; 4 task, or '' for any; 5 ms on this clock, or '': a call that comes later changes nothing
-- Returns cancelled, stopping, taken (a live job of another task), '' (no live job), v (none in a closed shard) or late.
-- Events  cancelled
-- include keys clock begin sweep window settled body state due wake bytes payload gate
local seen = replay()
if seen then
  return seen
end
local id, task, not_after = ARGV[3], ARGV[4], tonumber(ARGV[5])
if not_after and now_ms > not_after then
  return 'late'
end

local function stop_run(body)
  local s = read_state(redis.call('HGET', STATE, id))
  local gated = redis.call('HGET', GATE, id)
  redis.call('HDEL', GATE, id)
  if is_merged(body) then
    drop_gated_payloads(id, s.taken)
  elseif gated then
    mark_end(key_of(string.sub(gated, 9)), 'done')
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
    drop_payloads(id, mark_payloads)
  else
    mark_end(key_of(body), 'done')
  end
  end_run(id)
  count('cancelled', 1)
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', 'cancelled', 'id', id, 'task', task_name(task_code_of(body)) or '')
  return 'cancelled'
end

local reply = cancel()
if reply ~= 'v' then
  write_marks()
  remember(reply)
end
return reply
