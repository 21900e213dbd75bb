#!lua flags=allow-oom
-- Cancel a job. A waiting one is deleted. A running one is marked: its failure or expiry ends it. A call by id alone
-- also deletes the content that is gated behind the attempt; a call that names a generation affects only that one.
-- ARGV    3 id; 4 task, or '' for any; 5 ms on this clock, or '': a call that arrives later changes nothing; 6 keys and
--         7 digest of the generation that is meant (lib/generation)
-- Returns cancelled, stopping, taken (a live job of another task), '' (no such live job), v (no live job of the id in a
--         closed shard) or late.
-- Events  cancelled
-- include keys clock begin sweep window settled body state due wake bytes payload gate event generation
local seen = replay()
if seen then
  return seen
end
local id, task, not_after, keys, digest = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
if not_after and now_ms > not_after then
  return 'late'
end

local function drop_gated(body, s)
  local gated = redis.call('HGET', GATE, id)
  redis.call('HDEL', GATE, id)
  if is_merged(body) then
    drop_gated_payloads(id, s.taken)
  elseif gated then
    mark_end(key_of(string.sub(gated, 9)), 'done')
  end
end

local function stop_run(body)
  local s = read_state(redis.call('HGET', STATE, id))
  if keys == '' then
    drop_gated(body, s)
  end
  set_flag(s, STOPPING)
  redis.call('HSET', STATE, id, pack_state(s))
  return 'stopping'
end

local function take_out(body)
  redis.call('ZREM', DUE[class_of(body)], id)
  if is_merged(body) then
    drop_payloads(id, mark_payloads)
  else
    mark_end(key_of(body), 'done')
  end
  end_run(id)
end

local function cancel()
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or ''
  end
  local place = place_of(id, body, keys, digest)
  if not place then
    return ''
  elseif task ~= '' and not is_task_of(body, task) then
    return 'taken'
  elseif place == 'gated' then
    drop_gated(body, read_state(redis.call('HGET', STATE, id)))
  elseif redis.call('ZSCORE', LEASE, id) then
    return stop_run(body)
  else
    take_out(body)
  end
  count('cancelled', 1)
  emit_other({ outcome = 'cancelled', id = id, task = task_name(task_code_of(body)) or '' })
  write_events('')
  return 'cancelled'
end

local reply = cancel()
if reply ~= 'v' then
  write_marks()
  remember(reply)
end
return reply
