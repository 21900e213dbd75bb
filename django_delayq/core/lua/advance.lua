#!lua flags=allow-oom
-- Store how far a consumer has read the events of a shard, and trim the entries before the slowest cursor, except
-- the newest ones, which people look at. A cursor never moves back. A position behind the end of the stream is not
-- stored: it belongs to a stream that was lost, and trimming by it would remove unread entries.
-- ARGV    3 consumer; 4 position; 5 number of newest events that stay; 6 ... names of all consumers that follow this queue
-- Returns the consumer's cursor now, or '' when there is none, because the position is after the end of the stream.
-- Events  none
-- include keys clock begin position

-- Return the latest place noted by lib/event.lua that has `number` newer events; '0-0' if there is none.
local function place_before(number)
  local newest = tonumber(string.match(last_event, '-(%d+)$'))
  local newest_place = '0-0'
  for place in string.gmatch(redis.call('HGET', META, 'event_places') or '', '%S+') do
    if tonumber(string.match(place, '-(%d+)$')) <= newest - number then
      newest_place = place
    end
  end
  return newest_place
end

local function earlier(one, other)
  return is_later(one, other) and other or one
end

local field, position = 'cursor:' .. ARGV[3], ARGV[4]
local stored = redis.call('HGET', META, field)
if ended or is_later(position, last_event) then
  return stored or ''
elseif stored and not is_later(position, stored) then
  position = stored
elseif position ~= '0-0' then
  redis.call('HSET', META, field, position)
end
local limit = slowest_cursor(6)
local keep = tonumber(ARGV[5])
if limit and keep > 0 then
  limit = earlier(limit, place_before(keep))
end
if limit and limit ~= '0-0' then
  redis.call('XTRIM', EVENT, 'MINID', '=', limit)
end
return position
