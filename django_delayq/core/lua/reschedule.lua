#!lua flags=allow-oom
-- Move the due times of jobs that wait, or of the content that is gated behind running ones.
-- ARGV    3 entries (lib/each); 4 task, or '' for any; 5 ms; 6 '1' = ms is a delay from now, 'now' = to now, but never
--         later than it is; 7 'failed' = only jobs that have failed, 'waiting' = only jobs that wait
-- Returns one letter for each: m(oved), k (it is wanted now and due: it keeps its place), t(aken: a live job of another
--         task), r (it is reserved now), n(o such job) or v (no live job of the id in a closed shard).
-- Events  none
-- include keys clock begin window marks body state due wake payload gate generation each
local seen = replay()
if seen then
  return seen
end
local task, to_now, only = ARGV[4], ARGV[6] == 'now', ARGV[7]
local ms = tonumber(ARGV[5]) + ((to_now or ARGV[6] == '1') and now_ms or 0)

-- All waiting jobs that are wanted now become due one after another, also those of several calls, so that they keep their
-- order. The last place may be ahead of the clock, unless that was put back.
local is_ordered, last_place, moved = to_now and only == 'waiting', now_us, 0
if is_ordered then
  local last = tonumber(redis.call('HGET', META, 'run_now')) or 0
  last_place = last - now_us < lease_ms * 1000 and math.max(now_us, last) or now_us
end

-- Return the new place of a job, or nil if it keeps its own: an overdue job that is wanted now keeps its place before
-- jobs that fell due after it.
local function place_for(due)
  if not is_ordered then
    return not (to_now and due <= now_ms * 1000) and score_at(ms) or nil
  elseif due > last_place then
    last_place, moved = last_place + 1, moved + 1
    return text(last_place)
  end
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

local function reschedule(id, keys, digest)
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or 'n'
  end
  local where = place_of(id, body, keys, digest)
  if not where or (only == 'failed' and not (where == 'live' and redis.call('ZSCORE', FAILED, id))) then
    return 'n'
  elseif task ~= '' and not is_task_of(body, task) then
    return 't'
  elseif not redis.call('ZSCORE', LEASE, id) then
    local place = place_for(tonumber(redis.call('ZSCORE', DUE[class_of(body)], id)))
    if place then
      put_due(body, place, id)
    end
    return place and 'm' or 'k'
  elseif only == 'waiting' or (keys ~= '' and where == 'live') then
    return 'r' -- the content gated behind it is another job
  end
  return move_gated(id)
end

local before = head()
local letters = for_each(reschedule)
if moved > 0 then
  redis.call('HSET', META, 'run_now', text(last_place))
  count('run_now', moved)
end
wake_if_earlier(before)
return answer(letters)
