-- Payloads of merged jobs. ORDER: id \0 sortable score (8) arrival (8) digest (16) slot (1), all score 0, so one id's
-- payloads lie together in score order. PAYLOAD: id \0 digest slot -> sortable (8) arrival (8) key (16) Bc0 score text,
-- data. Slot '1' holds an equal payload that came while its twin in slot '0' was in flight.
local TAKE_MOST = 250

-- The payload's own bytes behind the head of its record.
local function data_of(value)
  local _, at = struct.unpack('<Bc0', value, 33)
  return string.sub(value, at)
end

local function field_of(id, digest, slot)
  return id .. '\0' .. digest .. slot
end

local function member_of(id, value, digest, slot)
  return id .. '\0' .. string.sub(value, 1, 16) .. digest .. slot
end

local function put_payload(id, digest, slot, value)
  redis.call('HSET', PAYLOAD, field_of(id, digest, slot), value)
  redis.call('ZADD', ORDER, 0, member_of(id, value, digest, slot))
end

local function drop_payload(id, digest, slot)
  local field = field_of(id, digest, slot)
  local value = redis.call('HGET', PAYLOAD, field)
  if value then
    redis.call('ZREM', ORDER, member_of(id, value, digest, slot))
    redis.call('HDEL', PAYLOAD, field)
  end
  return value
end

local function in_flight(taken, digest)
  for at = 1, #taken, 16 do
    if string.sub(taken, at, at + 15) == digest then
      return true
    end
  end
  return false
end

local function digest_of_bytes(bytes)
  local hex = redis.sha1hex(bytes)
  return (string.gsub(string.sub(hex, 1, 32), '%x%x', function(byte)
    return string.char(tonumber(byte, 16))
  end))
end

local function digest_of(value)
  return digest_of_bytes(data_of(value))
end

-- Which of two equal payloads stays: policy '0' min, '1' max, '2' first, '3' last.
local function newer_wins(policy, old, new)
  local old_sort, new_sort = string.sub(old, 1, 8), string.sub(new, 1, 8)
  if policy == '0' then
    return comes_before(new_sort, old_sort)
  elseif policy == '1' then
    return comes_before(old_sort, new_sort)
  end
  return policy == '3'
end

local function add_payload(id, digest, value, policy, taken)
  local slot = in_flight(taken, digest) and '1' or '0'
  local old = redis.call('HGET', PAYLOAD, field_of(id, digest, slot))
  if old then
    if not newer_wins(policy, old, value) then
      return
    end
    -- Only its place: the new record takes the field, so that no moment is without one of the two.
    redis.call('ZREM', ORDER, member_of(id, old, digest, slot))
  end
  put_payload(id, digest, slot, value)
end

local function payloads_of(id, limit)
  return redis.call('ZRANGEBYLEX', ORDER, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, limit)
end

-- The records of the payloads with these digests, framed for the holder.
local function taken_payloads(id, taken)
  local records = {}
  for at = 1, #taken, 16 do
    local value = redis.call('HGET', PAYLOAD, field_of(id, string.sub(taken, at, at + 15), '0'))
    if value then
      records[#records + 1] = struct.pack('<I4c0', #value, value)
    end
  end
  return struct.pack('<I2', #records) .. table.concat(records)
end

-- Hands out the first payloads in score order: their records, and their digests to remember.
local function take_payloads(id)
  local digests = {}
  for i, member in ipairs(payloads_of(id, TAKE_MOST)) do
    digests[i] = string.sub(member, -17, -2)
  end
  local taken = table.concat(digests)
  return taken_payloads(id, taken), taken
end

-- For content that is replaced, cancelled or buried as a whole: answers the dropped records, framed.
local function drop_payloads(id)
  local records = {}
  repeat
    local members = payloads_of(id, TAKE_MOST)
    for _, member in ipairs(members) do
      local field = field_of(id, string.sub(member, -17, -2), string.sub(member, -1))
      local value = redis.call('HGET', PAYLOAD, field) or ''
      redis.call('ZREM', ORDER, member)
      redis.call('HDEL', PAYLOAD, field)
      records[#records + 1] = struct.pack('<I4c0', #value, value)
    end
  until #members < TAKE_MOST
  return struct.pack('<I4', #records) .. table.concat(records)
end

-- What came for an id while its run goes on: all but what that run has in its hands.
local function drop_gated_payloads(id, taken)
  for _, member in ipairs(payloads_of(id, -1)) do
    local digest, slot = string.sub(member, -17, -2), string.sub(member, -1)
    if slot == '1' or not in_flight(taken, digest) then
      drop_payload(id, digest, slot)
    end
  end
end

-- The run is over and its payloads are done: twins that came meanwhile take their places.
local function finish_payloads(id, taken)
  for at = 1, #taken, 16 do
    local digest = string.sub(taken, at, at + 15)
    drop_payload(id, digest, '0')
    local twin = redis.call('HGET', PAYLOAD, field_of(id, digest, '1'))
    if twin then
      put_payload(id, digest, '0', twin)
      drop_payload(id, digest, '1')
    end
  end
end

-- The run is over and its payloads stay: a twin is the same payload again, so the lower score of both is kept.
local function return_payloads(id, taken)
  for at = 1, #taken, 16 do
    local digest = string.sub(taken, at, at + 15)
    local twin = redis.call('HGET', PAYLOAD, field_of(id, digest, '1'))
    if twin then
      add_payload(id, digest, twin, '0', '')
      drop_payload(id, digest, '1')
    end
  end
end

local function has_payloads(id)
  return #payloads_of(id, 1) > 0
end
