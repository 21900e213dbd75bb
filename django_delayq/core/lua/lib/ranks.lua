-- Ranks, counted from 0, in a sorted set in the order of (score, member). Includes: bytes.

-- Return how many entries are before this place, or up to it if it is `included`; its member may have been removed.
local function rank_of(key, score, member, included)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member_at = redis.call('ZRANGE', key, middle, middle)[1]
    if comes_before(member_at, member) or (included and member_at == member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Return how many entries are up to a bound, as ZCOUNT takes it (ZLEXCOUNT when it is one of members: all scores are
-- equal); `otherwise` without one ('' or nothing).
local function rank_of_bound(key, bound, otherwise, of_members)
  if (bound or '') == '' then
    return otherwise
  elseif of_members then
    return redis.call('ZLEXCOUNT', key, '-', bound)
  end
  return redis.call('ZCOUNT', key, '-inf', bound)
end
