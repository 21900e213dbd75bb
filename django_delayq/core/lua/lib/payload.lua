-- Payloads of merged jobs. ORDER: id \0 sortable score (8) arrival (8) digest (16) slot (1), all score 0, so one id's
-- payloads are adjacent and in score order. PAYLOAD: id \0 digest slot -> sortable (8) arrival (8) key (16) Bc0 score
-- text, data. Slot '1' holds an equal payload that arrived while its twin in slot '0' was in flight; where there is
-- one, there is gated content. Includes: marks.
local TAKE_MOST, TAKE_BYTES, READ_AT_ONCE = 250, 4 * 1024 * 1024, 25
-- include taken

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

local function key_of_payload(value)
  return string.sub(value, 17, 32)
end

local function digest_of_bytes(bytes)
  local hex = redis.sha1hex(bytes)
  return (string.gsub(string.sub(hex, 1, 32), '%x%x', function(byte)
    return string.char(tonumber(byte, 16))
  end))
end

-- Return the digest of a record: that of the payload's own bytes behind its head.
local function digest_of(value)
  local _, at = struct.unpack('<Bc0', value, 33)
  return digest_of_bytes(string.sub(value, at))
end

local function member_of(id, value, digest, slot)
  return id .. '\0' .. string.sub(value, 1, 16) .. digest .. slot
end

-- Return the fields of PAYLOAD for members of ORDER, which have the place in the order in the middle.
local function fields_of_members(members)
  local fields = {}
  for i, member in ipairs(members) do
    fields[i] = string.sub(member, 1, -34) .. string.sub(member, -17)
  end
  return fields
end

local function range_of(id)
  return '[' .. id .. '\0', '(' .. id .. '\1'
end

local function payloads_of(id, limit)
  local first, behind = range_of(id)
  return redis.call('ZRANGEBYLEX', ORDER, first, behind, 'LIMIT', 0, limit)
end

-- Calls `see(record, place)` for the payloads in these fields, until it returns true. A few are read at a time, because each
-- may have a megabyte. Return how many fields were read.
local function each_payload(fields, see)
  local seen, is_enough = 0, false
  while seen < #fields and not is_enough do
    local last = math.min(seen + READ_AT_ONCE, #fields)
    for i, value in ipairs(redis.call('HMGET', PAYLOAD, unpack(fields, seen + 1, last))) do
      is_enough = value and see(value, seen + i) or is_enough
    end
    seen = last
  end
  return seen
end

-- Return the payloads in these fields until they have `most` bytes: their records, how many fields were read, and the bytes.
local function read_payloads(fields, most)
  local records, bytes = {}, 0
  local seen = each_payload(fields, function(value)
    records[#records + 1], bytes = value, bytes + #value
    return bytes >= most
  end)
  return records, seen, bytes
end

-- Marks the payloads in these fields as done; to be called before their deletion.
local function mark_payloads(fields)
  each_payload(has_durable_payloads and fields or {}, function(value)
    mark_end(key_of_payload(value), 'done')
  end)
end

local function drop_payload(id, digest, slot, value)
  redis.call('ZREM', ORDER, member_of(id, value, digest, slot))
  redis.call('HDEL', PAYLOAD, field_of(id, digest, slot))
end

-- Drops payloads; `see(fields)`, if given, is called before a piece of them is dropped.
local function drop_members(members, see)
  for first = 1, #members, AT_ONCE do
    local some = { unpack(members, first, math.min(first + AT_ONCE - 1, #members)) }
    local fields = fields_of_members(some)
    if see then
      see(fields)
    end
    redis.call('ZREM', ORDER, unpack(some))
    redis.call('HDEL', PAYLOAD, unpack(fields))
  end
end

local function in_flight(taken, digest)
  for at = 17, #taken - 15, TAKEN do
    if string.sub(taken, at, at + 15) == digest then
      return true
    end
  end
  return false
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
  local members, taken = payloads_of(id, TAKE_MOST + 1), {}
  local waiting = #members
  members[TAKE_MOST + 1] = nil
  local records, seen, bytes = read_payloads(fields_of_members(members), room)
  room = room - bytes
  for i = 1, seen do
    taken[i] = string.sub(members[i], -33, -2)
  end
  return records, table.concat(taken) .. (seen < waiting and '+' or '')
end

-- Return which of two equal payloads stays: policy '0' min, '1' max, '2' first, '3' last.
local function newer_wins(policy, old, new)
  local old_sort, new_sort = string.sub(old, 1, 8), string.sub(new, 1, 8)
  if policy == '0' then
    return comes_before(new_sort, old_sort)
  elseif policy == '1' then
    return comes_before(old_sort, new_sort)
  end
  return policy == '3'
end

-- Stores a payload in the slot of `twin`, the record of an equal one, or nothing. The one that stays gets the durable
-- key of the other, unless it has its own.
local function unite_payloads(id, digest, slot, value, policy, twin)
  if twin then
    local stays, goes = value, twin
    if not newer_wins(policy, twin, value) then
      stays, goes = twin, value
    end
    local own, other = key_of_payload(stays), key_of_payload(goes)
    if is_durable(other) and not is_durable(own) then
      stays = string.sub(stays, 1, 16) .. other .. string.sub(stays, 33)
    elseif own ~= other then
      mark_end(other, 'done')
    end
    if stays == twin then
      return
    end
    -- Only its place is removed: the record that stays overwrites the field, so that one of the two always exists.
    redis.call('ZREM', ORDER, member_of(id, twin, digest, slot))
    value = stays
  end
  redis.call('HSET', PAYLOAD, field_of(id, digest, slot), value)
  redis.call('ZADD', ORDER, 0, member_of(id, value, digest, slot))
end

local function add_payload(id, digest, value, policy, taken)
  local slot = in_flight(taken, digest) and '1' or '0'
  unite_payloads(id, digest, slot, value, policy, redis.call('HGET', PAYLOAD, field_of(id, digest, slot)))
end

-- Drops the payloads of an id except those that an attempt holds; `see` as above.
local function drop_payloads(id, taken, see)
  local held, from, behind = {}, range_of(id)
  for _, member in ipairs((in_hand(id, taken))) do
    held[member] = true
  end
  repeat
    local members, leaving = redis.call('ZRANGEBYLEX', ORDER, from, behind, 'LIMIT', 0, AT_ONCE), {}
    for _, member in ipairs(members) do
      if not held[member] then
        leaving[#leaving + 1] = member
      end
    end
    drop_members(leaving, see)
    from = '(' .. (members[#members] or '')
  until #members < AT_ONCE
end

-- Ends an attempt whose payloads stay: a twin is the same payload again, so one of both is kept.
local function return_payloads(id, taken, policy, gated)
  local _, _, twins = in_hand(id, gated and taken or '')
  each_payload(twins, function(twin, place)
    local digest = string.sub(twins[place], -17, -2)
    add_payload(id, digest, twin, policy, '')
    drop_payload(id, digest, '1', twin)
  end)
end

-- Ends an attempt whose payloads are done: equal payloads that arrived since take their places.
local function finish_payloads(id, taken, gated)
  drop_members((in_hand(id, taken)))
  return_payloads(id, taken, '0', gated)
end

local function expect_durable_payloads()
  if not has_durable_payloads then
    has_durable_payloads = true
    redis.call('HSET', META, 'durable', '1')
  end
end
