#!lua flags=allow-oom
-- Replace the record of a bulk load, or delete it, if it still is the one that the caller has read.
-- KEYS    1 the records (hash: load -> record)
-- ARGV    1 load; 2 the record that was read; 3 the new one, '' = none
-- Returns '1', or '0' when another caller was faster.
-- Events  none
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if stored == ARGV[3] then
  return '1' -- a retry after a lost reply, or another caller stored the same
elseif stored ~= ARGV[2] then
  return '0'
elseif ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return '1'
