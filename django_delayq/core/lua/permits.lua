#!lua flags=allow-oom
-- Set how many permits holders have of a limit. A permit is leased: it ends by itself unless its holder renews it by the same
-- call. All numbers are absolute, so a call that is sent twice changes nothing more.
-- KEYS    1 record of the limit (hash): holder -> '<permits> <end ms>', and '\0<place>' -> '' for a shard whose jobs wait
-- ARGV    1 permits that exist; 2 place that waits if a holder wants more than it keeps and gets none of that, or '';
--         3 ... holder, permits that it keeps in any case, permits that it wants, ms that they last; and so on
-- Returns {permits of each holder, ..., ms until the permits of another holder end (-1 none), place, ...}: the places waited,
--         and there are free permits for them now; they are not registered any more.
-- Events  none
local time = redis.call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local record, total = KEYS[1], tonumber(ARGV[1])
local permits, ends, places, used = {}, {}, {}, 0
local stored = redis.call('HGETALL', record)
for i = 1, #stored, 2 do
  local holder = stored[i]
  local n, end_ms = string.match(stored[i + 1], '^(%d+) (%d+)$')
  if string.byte(holder) == 0 then
    places[#places + 1] = holder
  elseif tonumber(end_ms) <= now_ms then
    redis.call('HDEL', record, holder)
  else
    permits[holder], ends[holder] = tonumber(n), tonumber(end_ms)
    used = used + permits[holder]
  end
end

local reply, is_short, last = {}, false, 0
for i = 3, #ARGV, 4 do
  local holder, keep, most, end_ms = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), now_ms + tonumber(ARGV[i + 3])
  local others = used - (permits[holder] or 0)
  local granted = math.max(keep, math.min(most, total - others))
  if granted > 0 then
    redis.call('HSET', record, holder, string.format('%d %.0f', granted, end_ms))
  else
    redis.call('HDEL', record, holder)
  end
  used, permits[holder], ends[holder] = others + granted, granted, nil
  is_short = is_short or (granted <= keep and granted < most)
  last = math.max(last, end_ms)
  reply[#reply + 1] = granted
end

local first = -1
for _, end_ms in pairs(ends) do
  first = first < 0 and end_ms or math.min(first, end_ms)
  last = math.max(last, end_ms)
end
reply[#reply + 1] = first < 0 and -1 or first - now_ms
if is_short and ARGV[2] ~= '' then
  redis.call('HSET', record, '\0' .. ARGV[2], '')
end
for i = 1, math.min(#places, total - used) do
  redis.call('HDEL', record, places[i])
  reply[#reply + 1] = string.sub(places[i], 2)
end
-- Nothing depends on a record whose permits have all ended.
redis.call('PEXPIREAT', record, string.format('%.0f', last + 60000))
return reply
