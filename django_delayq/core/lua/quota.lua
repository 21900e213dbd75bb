#!lua
-- Change the quota of a shard: its part of the queue's max_length (core/quotas.py). A change that was decided under
-- another limit or another division is refused, so that the quotas of all shards never exceed the limit together.
-- ARGV    3 the queue's max_length; 4 number of the division; 5 'clear' = begin a division, whose number must be higher:
--         without a quota the shard takes no new jobs. It is refused if the division before has begun less than
--         ARGV[6] ms ago and has not ended; with 7 = '1' also if it has ended, because the sender has seen it unfinished;
--         'set' = end it; 'take' = take at most so many unused places away; 'give' = add places; 6 that number
-- Returns the number of live jobs (clear), of places taken (take), or 1; -1 when it is refused.
-- Events  none
-- include keys clock begin window
local act, n = ARGV[5], tonumber(ARGV[6])
local quota, division, dividing = unpack(redis.call('HMGET', META, 'quota', 'division', 'dividing'))
local is_limit = not ended and (rules.max_length or 0) == tonumber(ARGV[3])
local ahead = tonumber(ARGV[4]) - (tonumber(division) or 0)
local is_right = is_limit and ahead == 0

-- A division may be repeated without a request id: the second call changes nothing.
if act == 'clear' then
  if not is_limit or ahead <= 0 or dividing and now_ms - tonumber(dividing) < n or ARGV[7] == '1' and quota then
    return -1
  end
  redis.call('HDEL', META, 'quota')
  redis.call('HSET', META, 'division', ARGV[4], 'dividing', text(now_ms))
  return redis.call('HLEN', BODY)
elseif act == 'set' then
  if not is_right then
    return -1
  end
  redis.call('HDEL', META, 'dividing')
  return redis.call('HSETNX', META, 'quota', text(n))
end

local seen = replay()
if seen then
  return tonumber(seen)
end
local reply = -1
if act == 'take' and is_right and quota then
  reply = math.max(0, math.min(n, tonumber(quota) - redis.call('HLEN', BODY)))
  redis.call('HINCRBY', META, 'quota', text(0 - reply))
elseif act == 'give' and is_right and quota then
  redis.call('HINCRBY', META, 'quota', text(n))
  reply = 1
end
remember(text(reply))
return reply
