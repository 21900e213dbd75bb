#!lua flags=allow-oom
-- Ends a closed shard for good. What stays is a tombstone: the rule that nothing may come in, for those who still hold
-- an old layout; and until the epoch ends, the counters, which do not change any more.
-- ARGV    3 '1' = whatever lies there; else only when no job, no grave, no mark and no open run of an acked job (begun.lua)
--         does, no call may be sent again any more, and every consumer has read the events; 4 ... names of all consumers
--         that follow this queue
-- Returns '1', or '0' when it is too early.
-- Events  none
-- include keys clock begin sweep window rules position
if ended then
  if ARGV[3] == '1' then
    redis.call('UNLINK', COUNT)
  end
  return '1'
elseif not closing then
  return '0'
end

local function is_empty()
  -- Structures that must not outlive the jobs are looked at too: fsck is to find them, not this script to hide them.
  if redis.call('EXISTS', BODY, LEASE, GATE, STATE, ORDER, PAYLOAD, MORGUE, MORGUE_ID, GRAVE, MARKS, BEGUN) > 0 then
    return false
  end
  local slowest = slowest_cursor(4, true)
  if slowest and is_later(last_event, slowest) then
    return false
  end
  local youngest = redis.call('LINDEX', WINDOW, -1)
  return not youngest or now_ms - struct.unpack('<d', youngest, #youngest - 7) >= WINDOW_MS
end

if ARGV[3] ~= '1' and not is_empty() then
  return '0'
end
for _, key in ipairs(KEYS) do
  if key ~= META and key ~= WAKE and (key ~= COUNT or ARGV[3] == '1') then
    redis.call('UNLINK', key)
  end
end
for _, field in ipairs(redis.call('HKEYS', META)) do
  if string.find(field, '^tick:') or string.find(field, '^sight:') or string.find(field, '^counted:')
    or string.find(field, '^cursor:') then
    redis.call('HDEL', META, field)
  end
end
-- `last_event` stays: a reader that comes too late learns from it what it missed.
redis.call('HDEL', META, 'clock', 'seq', 'hold', 'classes', 'run_id', 'relayed', 'opened', 'born', 'durable', 'closed',
  'event_places')
redis.call('HSET', META, 'rules', struct.pack('<Bddd', CLOSING + ENDED, 0, 0, 0))
return '1'
