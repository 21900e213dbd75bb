#!lua flags=allow-oom
-- Store how far a consumer has read the events of a shard, and trim the entries before the slowest cursor. A
-- cursor never moves back. A position behind the end of the stream is not stored: it belongs to a stream that
-- was lost, and trimming by it would remove unread entries.
-- ARGV    3 consumer; 4 position; 5 ... names of all consumers that follow this queue
-- Returns the consumer's cursor now, or '' when there is none, because the position is after the end of the stream.
-- Events  none
-- include keys clock begin position
local field, position = 'cursor:' .. ARGV[3], ARGV[4]
local known = redis.call('HGET', META, field)
if ended or is_later(position, last_event) then
  return known or ''
elseif known and not is_later(position, known) then
  position = known
elseif position ~= '0-0' then
  redis.call('HSET', META, field, position)
end
local slowest = slowest_cursor(5)
if slowest and slowest ~= '0-0' then
  redis.call('XTRIM', EVENT, 'MINID', '=', slowest)
end
return position
