#!lua flags=allow-oom
-- Makes a shard of a new epoch ready, before anybody may know of it. May be said many times, by several at once and too
-- late: a shard that is in use stays as it is, and who read an older layout changes nothing.
-- ARGV    3 the registry's number of changes when the layout was read; 4 no fencing token may be smaller; 5 no arrival
--         may be smaller; 6 flags, 7 most live ids, 8 most graves, 9 ms that a grave stays (rule.lua);
--         10 number of shards of the epoch
-- Returns '1'; '0' when somebody opened it by a newer layout; 'u' when it is in use, or one of another number of shards.
-- Events  none
-- include keys clock begin rules
local version = tonumber(ARGV[3])
-- Every verb leaves its clock behind. A closed shard is one of an epoch that others have published and left since.
local size = redis.call('HGET', META, 'shards')
if clock_seen > 0 or closing or (size and size ~= ARGV[10]) then
  return 'u'
elseif version < (tonumber(redis.call('HGET', META, 'opened')) or 0) then
  return '0'
end
redis.call('HSET', META, 'opened', text(version), 'shards', ARGV[10], 'token', text(math.max(last_token, tonumber(ARGV[4]))),
  'seq', text(math.max(seq, tonumber(ARGV[5]))))
write_rules(tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
return '1'
