#!lua flags=allow-oom
-- Make waiting jobs of one class due now, after those of the previous call, and keep their order. An overdue job keeps
-- its place, and so does one that is due before its turn.
-- ARGV    3 class, 1 ... 9; 4 place of the last job of the previous call, us (0 at first); 5 the last place that is
--         checked, us; 6 most jobs
-- Returns '<dI4I4' place of the last job that was checked, how many were checked, how many of them got another due time.
-- Events  none
-- include keys clock begin sweep window body due wake
local seen = replay()
if seen then
  return seen
end
local class, last, moment, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local before = head()
-- Jobs at or before `last` were handled by the previous calls, or keep their place.
last = math.max(last, now_us)
local waiting = redis.call('ZRANGEBYSCORE', DUE[class], '(' .. text(last), moment, 'WITHSCORES', 'LIMIT', 0, limit)
local changed = {}
for i = 1, #waiting, 2 do
  local due = tonumber(waiting[i + 1])
  last = math.min(last + 1, due)
  if last < due then
    changed[#changed + 1] = text(last)
    changed[#changed + 1] = waiting[i]
  end
end
if #changed > 0 then
  redis.call('ZADD', DUE[class], 'XX', unpack(changed))
end
count('run_now', #changed / 2)
wake_if_earlier(before)
local reply = struct.pack('<dI4I4', last, #waiting / 2, #changed / 2)
remember(reply)
return reply
