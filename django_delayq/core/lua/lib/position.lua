-- Positions of events, '<ms>-<number>'; what callers send may be larger than a double can hold.
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

-- Return the cursors that consumers stored here: field -> position. Redis itself skips the many other fields of the
-- shard's meta (its ticks).
local function cursors_here()
  local cursors, from = {}, '0'
  repeat
    local page = redis.call('HSCAN', META, from, 'MATCH', 'cursor:*', 'COUNT', 1000)
    from = page[1]
    for i = 1, #page[2], 2 do
      cursors[page[2][i]] = page[2][i + 1]
    end
  until from == '0'
  return cursors
end

-- Return the cursor of the slowest consumer. It considers the consumers that are named by the arguments from `first`
-- on, which may have no cursor here yet, and, unless `only_named`, all others that stored one here. Nothing when there
-- is none.
local function slowest_cursor(first, only_named)
  local slowest
  local function look(cursor)
    if not slowest or is_later(slowest, cursor) then
      slowest = cursor
    end
  end
  local here = cursors_here()
  for i = first, #ARGV do
    local field = 'cursor:' .. ARGV[i]
    look(here[field] or '0-0')
    here[field] = nil
  end
  if not only_named then
    for _, cursor in pairs(here) do
      look(cursor)
    end
  end
  return slowest
end
