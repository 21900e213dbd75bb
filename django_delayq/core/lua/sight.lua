#!lua
-- Remember since when the schedule of a recurring task is known, so that no process fires ticks from before that.
-- ARGV    3 id of the task's job; 4 its schedule as text: another text is another schedule, known from now on; 5 a tick
--         in ms that is skipped with all before it, or '': the next call returns it
-- Returns Unix ms. Ticks up to it want no firing: they were fired or skipped, or lie before the schedule was first
--         seen.
-- Events  none
-- include keys clock begin
-- A value further ahead than this was written with a wrong clock; it would suppress the task until then.
local AHEAD_MS = 60000

local tick_field, sight_field = 'tick:' .. ARGV[3], 'sight:' .. ARGV[3]
local last = tonumber(redis.call('HGET', META, tick_field)) or 0
local since, schedule = string.match(redis.call('HGET', META, sight_field) or '', '^(%d+) (.*)$')
since = tonumber(since) or 0
local is_wrong = math.max(last, since) > now_ms + AHEAD_MS
if is_wrong then
  redis.call('HDEL', META, tick_field)
  last = 0
end
if is_wrong or schedule ~= ARGV[4] then
  since = now_ms
  redis.call('HSET', META, sight_field, text(since) .. ' ' .. ARGV[4])
end
local done, skipped = math.max(since, last), tonumber(ARGV[5])
if skipped and skipped > done then
  redis.call('HSET', META, sight_field, text(skipped) .. ' ' .. ARGV[4])
end
return text(done)
