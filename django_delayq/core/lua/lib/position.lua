-- Places in the event stream, '<ms>-<number>' of Redis; a number may be larger than what a double holds.
local function is_later(one, other)
  local ms, number = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_number = string.match(other, '^(%d+)-(%d+)$')
  ms, other_ms = tonumber(ms), tonumber(other_ms)
  if ms ~= other_ms then
    return ms > other_ms
  elseif #number ~= #other_number then
    return #number > #other_number
  end
  return number > other_number
end

-- Where the stream ends; '0-0' when nothing was ever written to it.
local function end_of_stream()
  if redis.call('EXISTS', EVENT) == 0 then
    return '0-0'
  end
  local info = redis.call('XINFO', 'STREAM', EVENT)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1]
    end
  end
end

-- The cursor of whoever has read least: of those whose names are the arguments from `first` on, who may not have come by
-- yet, and, unless only they are asked for, of all others that left one here. Nothing when there is nobody.
local function slowest_cursor(first, only_named)
  local slowest
  local function look(cursor)
    if not slowest or is_later(slowest, cursor) then
      slowest = cursor
    end
  end
  local fields, here, named = redis.call('HGETALL', META), {}, {}
  for i = first, #ARGV do
    named['cursor:' .. ARGV[i]] = true
  end
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 7) == 'cursor:' and (named[fields[i]] or not only_named) then
      here[fields[i]] = true
      look(fields[i + 1])
    end
  end
  for i = first, #ARGV do
    if not here['cursor:' .. ARGV[i]] then
      look('0-0')
    end
  end
  return slowest
end
