-- The payloads that an attempt of a merged job holds. `taken` (lib/state) has 32 bytes of each, as they are in ORDER
-- (lib/payload: sortable, arrival and digest), the first one first; and one more byte when the attempt left payloads behind.
local TAKEN, AT_ONCE = 32, 250

local function field_of(id, digest, slot)
  return id .. '\0' .. digest .. slot
end

-- Return what an attempt holds: members of ORDER, fields of PAYLOAD, and the fields of their twins.
local function in_hand(id, taken)
  local members, fields, twins = {}, {}, {}
  for at = 1, #taken - TAKEN + 1, TAKEN do
    local n, digest = #members + 1, string.sub(taken, at + 16, at + 31)
    members[n] = id .. '\0' .. string.sub(taken, at, at + 31) .. '0'
    fields[n], twins[n] = field_of(id, digest, '0'), field_of(id, digest, '1')
  end
  return members, fields, twins
end

local function left_some(taken)
  return #taken % TAKEN > 0
end

-- Handles large lists in pieces: one unpack() can take a few thousand values, and other clients are waiting.
local function remove_all(command, key, members)
  for first = 1, #members, AT_ONCE do
    redis.call(command, key, unpack(members, first, math.min(first + AT_ONCE - 1, #members)))
  end
end
