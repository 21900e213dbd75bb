#!lua flags=allow-oom
-- Change jobs: cancel them, move their due times, or end those that have failed.
-- ARGV    3 entries (lib/each); 4 a map: verb, the names below; what is missing is not demanded: only (waiting: jobs that run
--         are left alone; failed: also, and of those that wait only the ones that have failed), task,
--         not_after (ms: a call that arrives later changes nothing), selected (one event for all jobs; content behind a
--         running job is cancelled with it). Of move: ms, is_delay (ms is a delay from now) or to_now (an overdue job
--         keeps its place)
--         cancel: a waiting job is deleted. A running one is marked: its failure or expiry ends it; a call by id alone also
--         deletes the content that is gated behind the attempt, a call that names a generation affects only that one
--         delete, kill (into the morgue): each job as a whole, with the content that arrived for it up to this moment
-- Returns one letter for each: c (ended), s(topping: it is running), g (it was gated, and is deleted; its attempt
--         continues), m(oved), k (it is wanted now and due: it keeps its place), t(aken: a live job of another task), r (it
--         is reserved now; or gated behind an attempt that left payloads behind, which cannot be distinguished from those
--         that arrived meanwhile), n(o such job), v (no live job of the id in a closed shard) or x (too late).
-- Events  cancelled, bulk
-- include keys clock begin window marks body state due payload gate event grave generation each seen
local COUNTERS = { cancel = 'cancelled', delete = 'deleted', kill = 'killed' }
local how = cmsgpack.unpack(ARGV[4])
local counter, ended, moved = COUNTERS[how.verb], 0, 0

local function report(id, body)
  ended = ended + 1
  if not how.selected then
    emit_other({ outcome = counter, id = id, task = task_name(task_code_of(body)) or '' })
  end
end

-- The payloads of a job are spread over several morgue records, none with more than one attempt would have taken. The
-- first record has the job's own key, each other one that of its first payload. A piece is dropped after its records
-- are written.
local function bury_payloads(id, body, s, e)
  local buried = 0
  drop_payloads(id, '', function(fields)
    local at = 0
    while at < #fields do
      local records, seen = read_payloads({ unpack(fields, at + 1) }, TAKE_BYTES)
      local is_first = buried == 0 or not records[1]
      bury(id, is_first and body or with_key(body, key_of_payload(records[1])), s, e, records)
      at, buried = at + seen, buried + seen
    end
  end)
  return buried
end

-- Moves the content of a waiting job into the morgue. Return the number of its payloads.
local function kill(id, body, due)
  local s = read_state(redis.call('HGET', STATE, id))
  s.due = due
  local e = { outcome = 'buried', reason = 'buried by an operator', error = s.error }
  if is_merged(body) then
    return bury_payloads(id, body, s, e)
  end
  bury(id, body, s, e)
end

-- Drops the payloads of a job except those that an attempt holds, which are marked as done. Return how many there were.
local function drop_marked(id, taken)
  local payloads = redis.call('ZLEXCOUNT', ORDER, range_of(id))
  drop_payloads(id, taken, mark_payloads)
  return payloads
end

-- Deletes the content of a waiting job, which is marked as done. Return the number of its payloads.
local function delete(id, body)
  if is_merged(body) then
    return drop_marked(id, '')
  end
  mark_end(key_of(body), 'done')
end

local function end_waiting(id, body, due)
  local payloads = (how.verb == 'kill' and kill or delete)(id, body, due)
  leave_due(body, id)
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HDEL', BODY, id)
  report(id, body)
  return 'c', payloads
end

-- Deletes the content behind an attempt. Return how many payloads there were.
local function drop_gated(id, body, taken)
  local gated = redis.call('HGET', GATE, id)
  redis.call('HDEL', GATE, id)
  if is_merged(body) then
    return drop_marked(id, taken)
  elseif gated then
    mark_end(key_of(string.sub(gated, 9)), 'done')
  end
end

local function cancel_gated(id, body)
  local taken = read_state(redis.call('HGET', STATE, id)).taken
  if how.selected and left_some(taken) then
    return 'r'
  end
  local payloads = drop_gated(id, body, taken)
  if not how.selected then
    report(id, body)
  end
  return 'g', payloads
end

local function stop_run(id, body, keys)
  local s, payloads = read_state(redis.call('HGET', STATE, id)), 0
  if how.selected or keys == '' then
    payloads = drop_gated(id, body, s.taken)
  end
  s.stopping = true
  put_state(id, s)
  return 's', payloads
end

-- All waiting jobs that are wanted now become due one after another, so that they keep their order. The next call comes
-- later, because each job takes longer than a microsecond.
local last_place = now_us

-- Return the new place of a job, or nil if it keeps its own: an overdue job that is wanted now keeps its place before
-- jobs that fell due after it.
local function place_for(due)
  if not how.to_now then
    return score_at(how.ms + (how.is_delay and now_ms or 0))
  elseif how.only ~= 'waiting' then
    return due > now_ms * 1000 and score_at(now_ms) or nil
  elseif due > last_place then
    last_place, moved = last_place + 1, moved + 1
    return text(last_place)
  end
end

local function move_waiting(id, body, due)
  local place = place_for(due)
  if place then
    put_due(body, place, id)
  end
  return place and 'm' or 'k'
end

local function move_gated(id)
  local gated = redis.call('HGET', GATE, id)
  if not gated then
    return 'r'
  end
  local due, body = read_gate(gated)
  local place = place_for(due)
  if place then
    redis.call('HSET', GATE, id, pack_gate(tonumber(place), body))
  end
  return place and 'm' or 'k'
end

local is_move = how.verb == 'move'

local function change(id, keys, digest)
  if how.not_after and now_ms > how.not_after then
    return 'x'
  end
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or 'n'
  end
  local place = place_of(id, body, keys, digest)
  if not place or (how.only == 'failed' and not (place == 'live' and redis.call('ZSCORE', FAILED, id))) then
    return 'n'
  elseif how.task and task_name(task_code_of(body)) ~= how.task then
    return 't'
  end
  local due = tonumber(redis.call('ZSCORE', DUE[class_of(body)], id))
  if place == 'live' and due then
    return (is_move and move_waiting or end_waiting)(id, body, due)
  elseif how.only then
    return 'r'
  elseif is_move then
    return keys ~= '' and place == 'live' and 'r' or move_gated(id) -- the content gated behind it is another job
  end
  return (place == 'live' and stop_run or cancel_gated)(id, body, keys)
end

local before = head()
local letters = for_each(change)
count(counter, ended)
count('run_now', moved)
if how.selected and ended > 0 then
  emit_other({ outcome = 'bulk', jobs = ended, created = 0, extra = 'verb:' .. counter })
end
write_events('')
wake_if_earlier(before)
return answer(letters)
