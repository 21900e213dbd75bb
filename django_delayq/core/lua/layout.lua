#!lua flags=allow-oom
-- Changes what the registry says of a queue, if it still says what the caller has read. KEYS 1 registry of queues (hash:
-- queue -> layout as JSON, '' -> number of changes so far).
-- ARGV    1 queue; 2 the layout that was read, '' = there was none; 3 the new layout
-- Returns '1', or '0' when somebody else was faster.
-- Events  none
local queues, name = KEYS[1], ARGV[1]
local known = redis.call('HGET', queues, name) or ''
if known == ARGV[3] then
  return '1' -- sent again after a lost reply, or somebody wanted the same
elseif known ~= ARGV[2] then
  return '0'
end
redis.call('HSET', queues, name, ARGV[3])
-- Counted from the time on, so that the number is another one after Redis was lost and its queues were made again.
if redis.call('HEXISTS', queues, '') == 0 then
  redis.call('HSET', queues, '', redis.call('TIME')[1])
end
redis.call('HINCRBY', queues, '', 1)
return '1'
