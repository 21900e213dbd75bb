#!lua flags=no-writes
-- What lies where in a shard.
-- ARGV    none
-- Returns {now ms, ready, delayed, reserved, gated, failed, morgue, oldest due us (-1 none), first deadline ms (-1 none),
--          hold until ms, marks, counter name, counter value, ...}.
-- Events  none
-- include keys clock begin body due
local ready, waiting = 0, 0
for class = 1, 8 do
  ready = ready + redis.call('ZCOUNT', DUE[class], '-inf', text(now_ms * 1000 + 999))
  waiting = waiting + redis.call('ZCARD', DUE[class])
end
local first = redis.call('ZRANGE', LEASE, 0, 0, 'WITHSCORES')
local answer = {
  text(now_ms), ready, waiting - ready, redis.call('ZCARD', LEASE), redis.call('HLEN', GATE),
  redis.call('ZCARD', FAILED), redis.call('ZCARD', MORGUE), text(head() or -1), first[2] or '-1', text(hold_ms), redis.call('HLEN', SETTLED),
}
for _, item in ipairs(redis.call('HGETALL', COUNT)) do
  answer[#answer + 1] = item
end
return answer
