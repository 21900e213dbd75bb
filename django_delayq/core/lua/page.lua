#!lua flags=no-writes
-- Return members of one sorted set of the shard, behind a cursor, in the order of (score, member); nothing is changed.
-- ARGV    3 position of the key in KEYS; 4 '1' = backwards; 5 limit; 6 cursor score or ''; 7 cursor member; 8 where the
--         wanted range begins and 9 where it ends, each '' or a maximum as ZCOUNT takes it: entries up to the first are
--         before the range, entries up to the second are not behind it; 10 '1' = they are members, as ZLEXCOUNT takes
--         them (all scores are equal). 8 to 10 may be missing.
-- Returns {member, score, ...}.
-- Events  none
-- include keys clock begin bytes ranks
local key, backwards, limit = KEYS[tonumber(ARGV[3])], ARGV[4] == '1', tonumber(ARGV[5])
local score, member, of_members = ARGV[6], ARGV[7], ARGV[10] == '1'

-- Ranks of the wanted entries, counted from 0: from `first` up to `stop`, exclusive.
local first = rank_of_bound(key, ARGV[8], 0, of_members)
local stop = rank_of_bound(key, ARGV[9], nil, of_members) or redis.call('ZCARD', key)
if score ~= '' and backwards then
  stop = math.min(stop, rank_of(key, score, member))
elseif score ~= '' then
  first = math.max(first, rank_of(key, score, member, true))
end
if first >= stop then
  return {}
elseif not backwards then
  return redis.call('ZRANGE', key, first, math.min(first + limit, stop) - 1, 'WITHSCORES')
end
local entries = redis.call('ZRANGE', key, math.max(first, stop - limit), stop - 1, 'WITHSCORES')
local turned = {}
for i = #entries - 1, 1, -2 do
  turned[#turned + 1] = entries[i]
  turned[#turned + 1] = entries[i + 1]
end
return turned
