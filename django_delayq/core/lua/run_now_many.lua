#!lua flags=allow-oom
-- Makes waiting jobs of one class due now, the next ones behind those of the call before, and keeps their order. One that
-- is overdue keeps its place, and so does one that is due sooner than its turn would come.
-- ARGV    3 class, 1 ... 9; 4 place of the last job of the call before, us (0 at first); 5 the last place that is
--         looked at, us; 6 most jobs
-- Returns '<dI4I4' place of the last job that was looked at, how many were looked at, how many of them were moved.
-- Events  none
-- include keys clock begin sweep window body due wake
local seen = replay()
if seen then
  return seen
end
local class, last, moment, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local before = head()
-- What lies at or before `last` was done by the calls before, or keeps its place.
last = math.max(last, now_us)
local found = redis.call('ZRANGEBYSCORE', DUE[class], '(' .. text(last), moment, 'WITHSCORES', 'LIMIT', 0, limit)
local moved = {}
for i = 1, #found, 2 do
  local due = tonumber(found[i + 1])
  last = math.min(last + 1, due)
  if last < due then
    moved[#moved + 1] = text(last)
    moved[#moved + 1] = found[i]
  end
end
if #moved > 0 then
  redis.call('ZADD', DUE[class], 'XX', unpack(moved))
end
count('run_now', #moved / 2)
wake_if_earlier(before)
local reply = struct.pack('<dI4I4', last, #found / 2, #moved / 2)
remember(reply)
return reply
