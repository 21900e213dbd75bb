#!lua flags=allow-oom
-- Increment or set counters. A retried call changes nothing.
-- KEYS    1 counters (hash), 2 handled requests (zset: id -> when, ms): those of the last ten minutes, at most 10,000.
-- ARGV    1 request id; 2 how many fields the hash may have; 3 HINCRBY or HSET; then field and number of each
-- Returns number of fields that were left out, because there are too many.
-- Events  none
local figures, requests = KEYS[1], KEYS[2]
-- include text
local time = redis.call('TIME')
local now_ms = text(math.floor((time[1] * 1000000 + time[2]) / 1000))
if redis.call('ZADD', requests, 'NX', now_ms, ARGV[1]) == 0 then
  return 0
end
redis.call('ZREMRANGEBYSCORE', requests, '-inf', '(' .. text(now_ms - 600000))
redis.call('ZREMRANGEBYRANK', requests, 0, -10001)
local room = tonumber(ARGV[2]) - redis.call('HLEN', figures)
local left_out = 0
for at = 4, #ARGV, 2 do
  local is_new = redis.call('HEXISTS', figures, ARGV[at]) == 0
  if is_new and room <= 0 then
    left_out = left_out + 1
  else
    redis.call(ARGV[3], figures, ARGV[at], ARGV[at + 1])
    room = room - (is_new and 1 or 0)
  end
end
return left_out
