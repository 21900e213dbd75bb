#!lua flags=allow-oom
-- Increment counters, or set metrics. A retried call changes nothing.
-- KEYS    1 counters (hash), 2 handled requests (zset: id -> when, ms): those of the last ten minutes, at most 10,000.
-- ARGV    1 request id; 2 how many fields the hash may have; 3 number of fields to add to; for each of them: field,
--         increment; for each that is left: field, value to be set, to which the server's time is appended
-- Returns number of fields that were left out, because there are too many.
-- Events  none
local figures, requests = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now_ms = string.format('%.0f', math.floor((time[1] * 1000000 + time[2]) / 1000))
if redis.call('ZADD', requests, 'NX', now_ms, ARGV[1]) == 0 then
  return 0
end
redis.call('ZREMRANGEBYSCORE', requests, '-inf', string.format('(%.0f', now_ms - 600000))
redis.call('ZREMRANGEBYRANK', requests, 0, -10001)
local room = tonumber(ARGV[2]) - redis.call('HLEN', figures)
local left_out = 0
local last = 3 + 2 * tonumber(ARGV[3])
for at = 4, #ARGV, 2 do
  local field, number = ARGV[at], ARGV[at + 1]
  if room > 0 or redis.call('HEXISTS', figures, field) == 1 then
    if at > last then
      room = room - redis.call('HSET', figures, field, number .. ' ' .. now_ms)
    elseif redis.call('HINCRBY', figures, field, number) == tonumber(number) then
      room = room - 1
    end
  else
    left_out = left_out + 1
  end
end
return left_out
