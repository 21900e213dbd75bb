-- How payloads of one id unite, and how newer content replaces them. Includes: marks payload.

local function digest_of(value)
  return digest_of_bytes(data_of(value))
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
  put_payload(id, digest, slot, value)
end

local function add_payload(id, digest, value, policy, taken)
  local slot = in_flight(taken, digest) and '1' or '0'
  unite_payloads(id, digest, slot, value, policy, redis.call('HGET', PAYLOAD, field_of(id, digest, slot)))
end

-- Removes payloads that newer content replaces, and marks them as done.
local function drop_members(members)
  local fields = fields_of_members(members)
  mark_payloads(fields)
  remove_all('ZREM', ORDER, members)
  remove_all('HDEL', PAYLOAD, fields)
end

-- Drops all payloads of an id, piece by piece; `see(fields)`, if given, is called before a piece is dropped.
local function drop_payloads(id, see)
  local first = range_of(id)
  repeat
    local members = payloads_of(id, AT_ONCE)
    local fields = fields_of_members(members)
    if #members > 0 then
      if see then
        see(fields)
      end
      redis.call('ZREMRANGEBYLEX', ORDER, first, '[' .. members[#members])
      redis.call('HDEL', PAYLOAD, unpack(fields))
    end
  until #members < AT_ONCE
end

-- Drops content that arrived for an id during its attempt: all but the payloads that the attempt holds. It is marked as
-- done.
local function drop_gated_payloads(id, taken)
  if taken == '' then
    return drop_payloads(id, mark_payloads)
  end
  local held, from, behind = {}, range_of(id)
  for _, member in ipairs((in_hand(id, taken))) do
    held[member] = true
  end
  repeat
    local members = redis.call('ZRANGEBYLEX', ORDER, from, behind, 'LIMIT', 0, AT_ONCE)
    local gated = {}
    for _, member in ipairs(members) do
      if not held[member] then
        gated[#gated + 1] = member
      end
    end
    drop_members(gated)
    from = '(' .. (members[#members] or '')
  until #members < AT_ONCE
end

-- Ends an attempt whose payloads stay: a twin is the same payload again, so one of both is kept.
local function return_payloads(id, taken, policy, gated)
  if gated then
    local _, _, twins = in_hand(id, taken)
    each_twin(taken, twins, function(digest, twin)
      add_payload(id, digest, twin, policy, '')
      drop_payload(id, digest, '1', twin)
    end)
  end
end

local function expect_durable_payloads()
  if not has_durable_payloads then
    has_durable_payloads = true
    redis.call('HSET', META, 'durable', '1')
  end
end

-- Marks the end of a plain job's generation that another one replaces.
local function mark_replaced(old, new)
  if not is_merged(old) and key_of(old) ~= key_of(new) then
    mark_end(key_of(old), 'done')
  end
end
