#!lua flags=allow-oom
-- Move the due times of jobs that wait, or of the content that is gated behind running ones.
-- ARGV    3 entries (lib/each); 4 task, or '' for any; 5 ms; 6 '1' = ms is a delay from now, 'now' = to now, but never
--         later than it is; 7 '1' = only jobs that have failed
-- Returns one letter for each: m(oved), t(aken: a live job of another task), r (it is reserved now), n(o such job) or v
--         (no live job of the id in a closed shard).
-- Events  none
-- include keys clock begin sweep window marks body state due wake bytes payload gate generation each
local seen = replay()
if seen then
  return seen
end
local task, to_now, only_failed = ARGV[4], ARGV[6] == 'now', ARGV[7] == '1'
local ms = tonumber(ARGV[5]) + ((to_now or ARGV[6] == '1') and now_ms or 0)

-- An overdue job that is wanted now keeps its place before jobs that fell due after it.
local function is_early_enough(due)
  return to_now and due <= now_ms * 1000
end

local function move_gated(id)
  local gated = redis.call('HGET', GATE, id)
  if not gated then
    return 'r'
  end
  local due, body = read_gate(gated)
  if not is_early_enough(due) then
    redis.call('HSET', GATE, id, pack_gate(tonumber(score_at(ms)), body))
  end
  return 'm'
end

local function reschedule(id, keys, digest)
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or 'n'
  end
  local place = place_of(id, body, keys, digest)
  if not place or (only_failed and not (place == 'live' and redis.call('ZSCORE', FAILED, id))) then
    return 'n'
  elseif task ~= '' and not is_task_of(body, task) then
    return 't'
  elseif not redis.call('ZSCORE', LEASE, id) then
    if not is_early_enough(tonumber(redis.call('ZSCORE', DUE[class_of(body)], id))) then
      put_due(body, score_at(ms), id)
    end
    return 'm'
  elseif keys ~= '' and place == 'live' then
    return 'r' -- the content gated behind it is another job
  end
  return move_gated(id)
end

local before = head()
local letters = for_each(reschedule)
wake_if_earlier(before)
return answer(letters)
