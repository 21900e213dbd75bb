#!lua flags=allow-oom
-- Move the due time of a waiting job, or of the content that is gated behind a running one.
-- ARGV    3 id; 4 task, or '' for any; 5 ms; 6 '1' = ms is a delay from now, 'now' = to now, but never later than it
--         is; 7 keys and 8 digest of the generation that is meant (lib/generation)
-- Returns moved, taken (a live job of another task), '' (no such job waits) or v (no live job of the id in a closed
--         shard).
-- Events  none
-- include keys clock begin sweep window settled body state due wake bytes payload gate generation
local seen = replay()
if seen then
  return seen
end
local id, task, keys = ARGV[3], ARGV[4], ARGV[7]
local to_now = ARGV[6] == 'now'
local ms = tonumber(ARGV[5]) + ((to_now or ARGV[6] == '1') and now_ms or 0)

-- An overdue job that is wanted now keeps its place before jobs that fell due after it.
local function is_early_enough(due)
  return to_now and due <= now_ms * 1000
end

local function reschedule()
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or ''
  end
  local place = place_of(id, body, keys, ARGV[8])
  if not place then
    return ''
  elseif task ~= '' and not is_task_of(body, task) then
    return 'taken'
  elseif not redis.call('ZSCORE', LEASE, id) then
    if not is_early_enough(tonumber(redis.call('ZSCORE', DUE[class_of(body)], id))) then
      put_due(body, score_at(ms), id)
    end
    return 'moved'
  elseif keys ~= '' and place == 'live' then
    return '' -- it runs; the content gated behind it is another job
  end
  local gated = redis.call('HGET', GATE, id)
  if not gated then
    return ''
  end
  local due, gated_body = read_gate(gated)
  if not is_early_enough(due) then
    redis.call('HSET', GATE, id, pack_gate(tonumber(score_at(ms)), gated_body))
  end
  return 'moved'
end

local before = head()
local reply = reschedule()
if reply ~= 'v' then
  wake_if_earlier(before)
  remember(reply)
end
return reply
