#!lua flags=allow-oom
-- End a closed shard. A tombstone remains: the rule that refuses new jobs, for callers with an old layout, and until the
-- epoch ends also the counters, which no longer change.
-- ARGV    3 '1' = whatever the shard holds; else only if it has no job, morgue record, mark or open attempt of an acked job
--         (begun.lua), and no call can be repeated any more; then its events stay for a day
-- Returns '1', or '0' when it is too early.
-- Events  none
-- include keys clock begin window
local EVENTS_STAY_SECONDS = 86400

if ended then
  if ARGV[3] == '1' then
    redis.call('UNLINK', COUNT, EVENT)
  end
  return '1'
elseif not closing then
  return '0'
end

local youngest = redis.call('LINDEX', WINDOW, -1)
local is_repeatable = youngest and now_ms - window_times(youngest) < WINDOW_MS
-- Structures that must not outlive the jobs count too: fsck must find them, and this script must not hide them.
local lists = { BODY, LEASE, GATE, STATE, ORDER, PAYLOAD, MORGUE, MORGUE_ID, GRAVE, MARKS, BEGUN, LANE_ORDER }
if ARGV[3] ~= '1' and (is_repeatable or redis.call('EXISTS', unpack(lists)) > 0) then
  return '0'
end
for _, key in ipairs(KEYS) do
  if key == EVENT and ARGV[3] ~= '1' then
    redis.call('EXPIRE', key, EVENTS_STAY_SECONDS)
  elseif key ~= META and key ~= WAKE and (key ~= COUNT or ARGV[3] == '1') then
    redis.call('UNLINK', key)
  end
end
for _, field in ipairs(redis.call('HKEYS', META)) do
  if string.find(field, '^tick:') or string.find(field, '^sight:') or string.find(field, '^counted:') then
    redis.call('HDEL', META, field)
  end
end
-- `last_event` stays: a late reader can tell from it how many events it missed.
redis.call('HDEL', META, 'clock', 'seq', 'hold', 'classes', 'run_id', 'relayed', 'born', 'durable', 'closed',
  'quota', 'division', 'dividing')
redis.call('HSET', META, 'rules', cmsgpack.pack({ closing = true, ended = true }))
return '1'
