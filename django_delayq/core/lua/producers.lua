#!lua flags=allow-oom
-- Pause or resume the producers of all queues: the switch itself. The caller then writes it into the rules of
-- all shards; a shard that is made later gets it before its layout is published (layout.lua).
-- KEYS    1 registry of queues
-- ARGV    1 '1' = pause, '0' = resume
-- Returns '1'
-- Events  none
local queues = KEYS[1]
if ARGV[1] == '1' then
  local time = redis.call('TIME')
  redis.call('HSETNX', queues, '-producers', string.format('%.0f', math.floor((time[1] * 1000000 + time[2]) / 1000)))
else
  redis.call('HDEL', queues, '-producers')
end
-- Every process reads the registry again.
if redis.call('HEXISTS', queues, '') == 0 then
  redis.call('HSET', queues, '', redis.call('TIME')[1])
end
redis.call('HINCRBY', queues, '', 1)
return '1'
