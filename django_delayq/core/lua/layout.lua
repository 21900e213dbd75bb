#!lua flags=allow-oom
-- Replace a queue's layout in the registry, if it still is the one that the caller has read.
-- KEYS    1 registry of queues (hash: queue -> layout as JSON, '' -> number of changes so far).
-- ARGV    1 queue; 2 the layout that was read, '' = there was none; 3 the new layout; 4 for a layout that publishes new
--         shards, whether they were prepared for paused producers ('1') or not ('0'); '' = it publishes none
-- Returns '1', or '0' when another caller was faster.
-- Events  none
local queues, name = KEYS[1], ARGV[1]
local stored = redis.call('HGET', queues, name) or ''
if stored == ARGV[3] then
  return '1' -- a retry after a lost reply, or another caller stored the same
elseif stored ~= ARGV[2] then
  return '0'
elseif ARGV[4] ~= '' and redis.call('HEXISTS', queues, '-producers') ~= tonumber(ARGV[4]) then
  return '0'
end
redis.call('HSET', queues, name, ARGV[3])
-- Starts at the time, so that the number differs after Redis was lost and its queues were created again.
if redis.call('HEXISTS', queues, '') == 0 then
  redis.call('HSET', queues, '', redis.call('TIME')[1])
end
redis.call('HINCRBY', queues, '', 1)
return '1'
