-- Payloads of merged jobs. ORDER: id \0 sortable score (8) arrival (8) digest (16) slot (1), all score 0, so one id's
-- payloads are adjacent and in score order. PAYLOAD: id \0 digest slot -> sortable (8) arrival (8) key (16) Bc0 score
-- text, data. Slot '1' holds an equal payload that arrived while its twin in slot '0' was in flight; where there is
-- one, there is gated content. Includes: marks.
-- `taken` (lib/state) lists the payloads that an attempt holds: 32 bytes of each payload as they are in ORDER
-- (sortable, arrival and digest), the first one first; and one more byte when the attempt left payloads behind.
local TAKE_MOST, TAKE_BYTES, AT_ONCE, READ_AT_ONCE = 250, 4 * 1024 * 1024, 250, 25
local TAKEN = 32

-- Byte order, as sorted sets use it: Lua's own `<` on strings follows the server's locale.
local function comes_before(a, b)
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

-- Handles large lists in pieces: one unpack() can take a few thousand values, and other clients are waiting.
local function remove_all(command, key, members)
  for first = 1, #members, AT_ONCE do
    redis.call(command, key, unpack(members, first, math.min(first + AT_ONCE - 1, #members)))
  end
end

-- Return the payload's own bytes behind the head of its record.
local function data_of(value)
  local _, at = struct.unpack('<Bc0', value, 33)
  return string.sub(value, at)
end

local function key_of_payload(value)
  return string.sub(value, 17, 32)
end

-- Marks the payloads in these fields as done; to be called before their deletion. A few are read at a time, because
-- each may have a megabyte.
local function mark_payloads(fields)
  for first = 1, has_durable_payloads and #fields or 0, READ_AT_ONCE do
    local last = math.min(first + READ_AT_ONCE - 1, #fields)
    for _, value in ipairs(redis.call('HMGET', PAYLOAD, unpack(fields, first, last))) do
      if value then
        mark_end(key_of_payload(value), 'done')
      end
    end
  end
end

local function field_of(id, digest, slot)
  return id .. '\0' .. digest .. slot
end

local function member_of(id, value, digest, slot)
  return id .. '\0' .. string.sub(value, 1, 16) .. digest .. slot
end

-- Return the field of PAYLOAD for a member of ORDER, which has the place in the order in the middle.
local function field_of_member(member)
  return string.sub(member, 1, -34) .. string.sub(member, -17)
end

local function fields_of_members(members)
  local fields = {}
  for i, member in ipairs(members) do
    fields[i] = field_of_member(member)
  end
  return fields
end

local function put_payload(id, digest, slot, value)
  redis.call('HSET', PAYLOAD, field_of(id, digest, slot), value)
  redis.call('ZADD', ORDER, 0, member_of(id, value, digest, slot))
end

local function drop_payload(id, digest, slot, value)
  redis.call('ZREM', ORDER, member_of(id, value, digest, slot))
  redis.call('HDEL', PAYLOAD, field_of(id, digest, slot))
end

local function in_flight(taken, digest)
  for at = 17, #taken - 15, TAKEN do
    if string.sub(taken, at, at + 15) == digest then
      return true
    end
  end
  return false
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

local function digest_of_bytes(bytes)
  local hex = redis.sha1hex(bytes)
  return (string.gsub(string.sub(hex, 1, 32), '%x%x', function(byte)
    return string.char(tonumber(byte, 16))
  end))
end

local function range_of(id)
  return '[' .. id .. '\0', '(' .. id .. '\1'
end

local function payloads_of(id, limit)
  local first, behind = range_of(id)
  return redis.call('ZRANGEBYLEX', ORDER, first, behind, 'LIMIT', 0, limit)
end

local function has_payloads(id)
  return #payloads_of(id, 1) > 0
end

-- Return the payloads in these fields until they have `most` bytes: their records, how many fields were read, and the
-- bytes. A few at a time, because each may have a megabyte.
local function read_payloads(fields, most)
  local records, seen, bytes = {}, 0, 0
  while seen < #fields and (seen == 0 or bytes < most) do
    local last = math.min(seen + READ_AT_ONCE, #fields)
    for _, value in ipairs(redis.call('HMGET', PAYLOAD, unpack(fields, seen + 1, last))) do
      if value then
        bytes = bytes + #value
        records[#records + 1] = value
      end
    end
    seen = last
  end
  return records, seen, bytes
end

-- Return the payloads that an attempt holds.
local function taken_payloads(id, taken)
  local _, fields = in_hand(id, taken)
  return (read_payloads(fields, math.huge))
end

-- Bytes of payloads that still fit into the reply of this call.
local room = TAKE_BYTES

-- Hands out the first payloads in score order: returns their records, and the value of `taken`.
local function take_payloads(id)
  local members, fields, taken = payloads_of(id, TAKE_MOST + 1), {}, {}
  for i = 1, math.min(#members, TAKE_MOST) do
    fields[i] = field_of_member(members[i])
  end
  local records, seen, bytes = read_payloads(fields, room)
  room = room - bytes
  for i = 1, seen do
    taken[i] = string.sub(members[i], -33, -2)
  end
  return records, table.concat(taken) .. (seen < #members and '+' or '')
end

-- Calls `each(digest, twin record)` for the equal payloads that arrived while their twins were in flight.
local function each_twin(taken, twins, each)
  for first = 1, #twins, READ_AT_ONCE do
    local last = math.min(first + READ_AT_ONCE - 1, #twins)
    for i, twin in ipairs(redis.call('HMGET', PAYLOAD, unpack(twins, first, last))) do
      if twin then
        local digest_at = (first + i - 2) * TAKEN + 17
        each(string.sub(taken, digest_at, digest_at + 15), twin)
      end
    end
  end
end

-- Ends an attempt whose payloads are done: equal payloads that arrived since take their places.
local function finish_payloads(id, taken, gated)
  local members, fields, twins = in_hand(id, taken)
  remove_all('ZREM', ORDER, members)
  remove_all('HDEL', PAYLOAD, fields)
  if gated then
    each_twin(taken, twins, function(digest, twin)
      put_payload(id, digest, '0', twin)
      drop_payload(id, digest, '1', twin)
    end)
  end
end
