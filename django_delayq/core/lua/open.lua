#!lua flags=allow-oom
-- Prepare a shard of a new epoch, before it is published. Safe to call many times, concurrently and too late: a shard
-- that is in use stays as it is.
-- ARGV    3 the lower bound of fencing tokens; 4 the lower bound of arrivals; 5 the rules (rule.lua); 6 number of shards of
--         the epoch
-- Returns '1', or 'u' when it is in use, or has another number of shards.
-- Events  none
-- include keys clock begin rules
-- Every operation stores its clock. A closed shard belongs to an epoch that others have published and left since.
local size = redis.call('HGET', META, 'shards')
if clock_seen > 0 or closing or (size and size ~= ARGV[6]) then
  return 'u'
end
redis.call('HSET', META, 'shards', ARGV[6], 'token', text(math.max(last_token, tonumber(ARGV[3]))),
  'seq', text(math.max(seq, tonumber(ARGV[4]))))
write_rules(cmsgpack.unpack(ARGV[5]))
return '1'
