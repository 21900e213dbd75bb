-- Which job of an id a caller means. `keys`: of its generation and of its payload, 16 bytes each, '' = the live one;
-- `digest` of the payload, or ''. A merged payload goes from attempt to attempt, and so from one generation to the
-- next.
-- Includes: body payload state gate.
local function is_one_of(keys, key)
  for at = 1, #keys, 16 do
    if string.sub(keys, at, at + 15) == key then
      return true
    end
  end
  return false
end

local function place_of_payload(id, keys, digest)
  for _, slot in ipairs({ '0', '1' }) do
    local value = redis.call('HGET', PAYLOAD, field_of(id, digest, slot))
    if value and is_one_of(keys, key_of_payload(value)) then
      if not redis.call('ZSCORE', LEASE, id) then
        return 'live'
      end
      local taken = read_state(redis.call('HGET', STATE, id)).taken
      return slot == '0' and in_flight(taken, digest) and 'live' or 'gated'
    end
  end
end

-- Return where it is: live (it waits or runs), gated (behind the attempt of another one), or nil.
local function place_of(id, body, keys, digest)
  if keys == '' or is_one_of(keys, key_of(body)) then
    return 'live'
  end
  local gated = redis.call('HGET', GATE, id)
  if gated and is_one_of(keys, key_of(string.sub(gated, 9))) then
    return 'gated'
  end
  return digest ~= '' and place_of_payload(id, keys, digest) or nil
end
