#!lua flags=allow-oom
-- Prepare a shard of a new epoch, before it is published. Safe to call many times, concurrently and too late: a shard
-- that is in use stays as it is, and a caller that read an older layout changes nothing.
-- ARGV    3 the registry's number of changes when the layout was read; 4 the lower bound of fencing tokens; 5 the lower
--         bound of arrivals; 6 the rules (rule.lua); 7 number of shards of the epoch
-- Returns '1'; '0' when a caller with a newer layout opened it; 'u' when it is in use, or has another number of shards.
-- Events  none
-- include keys clock begin rules
local version = tonumber(ARGV[3])
-- Every operation stores its clock. A closed shard belongs to an epoch that others have published and left since.
local size = redis.call('HGET', META, 'shards')
if clock_seen > 0 or closing or (size and size ~= ARGV[7]) then
  return 'u'
elseif version < (tonumber(redis.call('HGET', META, 'opened')) or 0) then
  return '0'
end
redis.call('HSET', META, 'opened', text(version), 'shards', ARGV[7], 'token', text(math.max(last_token, tonumber(ARGV[4]))),
  'seq', text(math.max(seq, tonumber(ARGV[5]))))
write_rules(cmsgpack.unpack(ARGV[6]))
return '1'
