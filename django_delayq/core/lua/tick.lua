#!lua flags=allow-oom
-- The dispatcher's look at a shard: wakes a consumer when due work waits, says when to look again, and arms the
-- reaper hold after a restart of Redis (another run_id) or when the caller saw an outage; forgets old requests.
-- ARGV    3 '1' = hold
-- Returns '<dddBB' now us, next due us (-1 none), next deadline ms (-1 none), 1 = leases ran out, 1 = reaper hold.
-- Events  none
-- include keys clock begin sweep window body due wake
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
local known = redis.call('HGET', META, 'run_id')
if known ~= run_id then
  redis.call('HSET', META, 'run_id', run_id)
end
if ARGV[3] == '1' or (known and known ~= run_id) then
  hold_ms = now_ms + lease_ms
end
keep_clock()
sweep(redis.call('LLEN', WINDOW), 250)

local next_due = head()
if next_due and math.floor(next_due / 1000) <= now_ms then
  wake()
end
local first = redis.call('ZRANGE', LEASE, 0, 0, 'WITHSCORES')
local deadline = tonumber(first[2]) or -1
local ran_out = deadline >= 0 and deadline <= now_ms
return struct.pack('<dddBB', now_us, next_due or -1, deadline, ran_out and 1 or 0, hold_ms > now_ms and 1 or 0)
