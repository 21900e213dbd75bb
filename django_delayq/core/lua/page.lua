#!lua flags=no-writes
-- Members of one sorted set of the shard, behind a cursor, in the order of (score, member); nothing is changed.
-- ARGV    3 position of the key in KEYS; 4 '1' = backwards; 5 limit; 6 cursor score or ''; 7 cursor member;
--         8 where the wanted range begins and 9 where it ends, each '' or a maximum as ZCOUNT takes it: what lies up to
--         the first is before the range, what lies up to the second is not behind it; 10 '1' = they are members, as
--         ZLEXCOUNT takes them (all scores are equal). 8 to 10 may be missing.
-- Returns {member, score, ...}.
-- Events  none
-- include keys clock begin bytes
local key, backwards, limit = KEYS[tonumber(ARGV[3])], ARGV[4] == '1', tonumber(ARGV[5])
local score, member = ARGV[6], ARGV[7]

-- How many entries lie at or before the cursor; the cursor's member need not be there any more.
local function rank_of_cursor(inclusive)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', key, middle, middle)[1]
    if comes_before(found, member) or (inclusive and found == member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- How many entries lie up to a bound; `otherwise` without one.
local function rank_of_bound(bound, otherwise)
  if (bound or '') == '' then
    return otherwise
  elseif ARGV[10] == '1' then
    return redis.call('ZLEXCOUNT', key, '-', bound)
  end
  return redis.call('ZCOUNT', key, '-inf', bound)
end

-- Ranks of the wanted entries, counted from 0: from `first` up to, not with, `stop`.
local first, stop = rank_of_bound(ARGV[8], 0), rank_of_bound(ARGV[9], nil) or redis.call('ZCARD', key)
if score ~= '' and backwards then
  stop = math.min(stop, rank_of_cursor(false))
elseif score ~= '' then
  first = math.max(first, rank_of_cursor(true))
end
if first >= stop then
  return {}
elseif not backwards then
  return redis.call('ZRANGE', key, first, math.min(first + limit, stop) - 1, 'WITHSCORES')
end
local found = redis.call('ZRANGE', key, math.max(first, stop - limit), stop - 1, 'WITHSCORES')
local turned = {}
for i = #found - 1, 1, -2 do
  turned[#turned + 1] = found[i]
  turned[#turned + 1] = found[i + 1]
end
return turned
