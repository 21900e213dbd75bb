#!lua flags=allow-oom
-- Replace a field of the registry of queues, or delete it, if it still is what the caller has read.
-- KEYS    1 registry of queues (hash: queue -> layout as JSON, '-producers' -> since when all producers are paused,
--         '' -> number of changes so far).
-- ARGV    1 field; 2 the value that was read, '' = there was none; 3 the new value, '' = none
-- Returns '1', or '0' when another caller was faster.
-- Events  none
local queues, field = KEYS[1], ARGV[1]
local stored = redis.call('HGET', queues, field) or ''
if stored == ARGV[3] then
  return '1' -- a retry after a lost reply, or another caller stored the same
elseif stored ~= ARGV[2] then
  return '0'
elseif ARGV[3] == '' then
  redis.call('HDEL', queues, field)
else
  redis.call('HSET', queues, field, ARGV[3])
end
-- Starts at the time, so that the number differs after Redis was lost and its queues were created again.
redis.call('HSETNX', queues, '', redis.call('TIME')[1])
redis.call('HINCRBY', queues, '', 1)
return '1'
