#!lua flags=allow-oom
-- Changes the record of a bulk write, or takes it off, if it still is what the caller has read.
-- KEYS    1 the records (hash: run -> record)
-- ARGV    1 run; 2 the record that was read; 3 the new one, '' = none
-- Returns '1', or '0' when somebody else was faster.
-- Events  none
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if known == ARGV[3] then
  return '1' -- sent again after a lost reply, or somebody wanted the same
elseif known ~= ARGV[2] then
  return '0'
elseif ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return '1'
