#!lua flags=no-writes
-- Members of one sorted set of the shard, behind a cursor, in the order of (score, member); nothing is changed.
-- ARGV    3 position of the key in KEYS; 4 '1' = backwards; 5 limit (at most 250);
--         6 cursor score or ''; 7 cursor member
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

if backwards then
  local last = (score == '' and redis.call('ZCARD', key) or rank_of_cursor(false)) - 1
  if last < 0 then
    return {}
  end
  local found = redis.call('ZRANGE', key, math.max(0, last - limit + 1), last, 'WITHSCORES')
  local turned = {}
  for i = #found - 1, 1, -2 do
    turned[#turned + 1] = found[i]
    turned[#turned + 1] = found[i + 1]
  end
  return turned
end
local first = score == '' and 0 or rank_of_cursor(true)
return redis.call('ZRANGE', key, first, first + limit - 1, 'WITHSCORES')
