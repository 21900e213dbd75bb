#!lua flags=allow-oom
-- Cancel jobs. A waiting one is deleted. A running one is marked: its failure or expiry ends it. A call by id alone also
-- deletes the content that is gated behind the attempt; a call that names a generation affects only that one.
-- ARGV    3 entries (lib/each); 4 task, or '' for any; 5 ms on this clock, or '': a call that arrives later changes
--         nothing; 6 '' = an event for each job, 'selected' = one for all, and content behind a running job is deleted with
--         it, 'waiting' = one for all, and jobs that run are left alone
-- Returns one letter for each: c(ancelled), s(topping: it is running), g (it was gated, and is deleted; its attempt
--         continues), t(aken: a live job of another task), n(o such live job), v (no live job of the id in a closed
--         shard) or x (too late); with 'selected' also r (it is gated behind an attempt that left payloads behind, which
--         cannot be distinguished from those that arrived meanwhile).
-- Events  cancelled, bulk
-- include keys clock begin window marks body state due wake payload unite gate event generation each remove
local seen = replay()
if seen then
  return seen
end
local task, not_after, mode = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local is_selection, cancelled = mode ~= '', 0

local function report(id, body)
  cancelled = cancelled + 1
  if not is_selection then
    emit_other({ outcome = 'cancelled', id = id, task = task_name(task_code_of(body)) or '' })
  end
end

-- Deletes the content behind an attempt. Return how many payloads there were.
local function drop_gated(id, body, taken)
  local gated, payloads = redis.call('HGET', GATE, id), 0
  redis.call('HDEL', GATE, id)
  if is_merged(body) then
    payloads = redis.call('ZLEXCOUNT', ORDER, range_of(id))
    drop_gated_payloads(id, taken)
  elseif gated then
    mark_end(key_of(string.sub(gated, 9)), 'done')
  end
  return payloads
end

local function close_gate(id, body)
  local taken = read_state(redis.call('HGET', STATE, id)).taken
  if is_selection and left_some(taken) then
    return 'r'
  end
  local payloads = drop_gated(id, body, taken)
  if not is_selection then
    report(id, body)
  end
  return 'g', payloads
end

local function stop_run(id, body, keys)
  local s, payloads = read_state(redis.call('HGET', STATE, id)), 0
  if is_selection or keys == '' then
    payloads = drop_gated(id, body, s.taken)
  end
  s.stopping = true
  put_state(id, s)
  return 's', payloads
end

local function cancel(id, keys, digest)
  if not_after and now_ms > not_after then
    return 'x'
  end
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or 'n'
  end
  local place = place_of(id, body, keys, digest)
  if not place then
    return 'n'
  elseif task ~= '' and not is_task_of(body, task) then
    return 't'
  elseif place == 'gated' then
    return close_gate(id, body)
  elseif not redis.call('ZSCORE', LEASE, id) then
    local payloads = delete_waiting(id, body)
    report(id, body)
    return 'c', payloads
  elseif mode == 'waiting' then
    return 'n'
  end
  return stop_run(id, body, keys)
end

local letters = for_each(cancel)
if is_selection then
  emit_bulk_event('cancelled', cancelled)
else
  count('cancelled', cancelled)
  write_events('')
end
return answer(letters)
