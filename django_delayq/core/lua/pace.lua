#!lua flags=allow-oom
-- Return how long a sender of a bulk load has to wait so that all its senders together keep to a rate (GCRA, the leaky
-- bucket as a meter: one stored moment, at which the next job is in time). A late sender catches up, by the jobs of one
-- call or a second at most.
-- KEYS    1 '<the moment>:<when it was written>', in microseconds
-- ARGV    1 jobs that are to be sent; 2 jobs a second
-- Returns ms to wait before they are sent.
-- Events  none
local LATEST = 1000000
local time = redis.call('TIME')
local now, step = time[1] * 1000000 + time[2], ARGV[1] * 1000000 / ARGV[2]
local due, seen = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+):(%d+)$')
-- If the clock was set back, the moment moves back with it.
due = due and tonumber(due) - math.max(0, tonumber(seen) - now)
due = due and math.max(due, now - math.min(step, LATEST)) or now
local wait = math.max(0, math.ceil((due - now) / 1000))
redis.call('SET', KEYS[1], string.format('%.0f:%.0f', due + step, now), 'PX', wait + math.ceil(step / 1000) + 60000)
return wait
