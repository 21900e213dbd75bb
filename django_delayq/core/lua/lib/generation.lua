-- Which job of an id a caller means. `keys`: of its generation and of its payload, 16 bytes each, '' = the live one;
-- `digest` of the payload, or ''. A merged payload goes from attempt to attempt, and so from one generation to the
-- next. Includes: body payload state gate.
-- exports place_of is_known
local function is_one_of(keys, key)
  return string.find(keys, key, 1, true) ~= nil
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
function place_of(id, body, keys, digest)
  if keys == '' or is_one_of(keys, key_of(body)) then
    return 'live'
  end
  local gated = redis.call('HGET', GATE, id)
  if gated and is_one_of(keys, key_of(string.sub(gated, 9))) then
    return 'gated'
  end
  return digest ~= '' and place_of_payload(id, keys, digest) or nil
end

local function is_in_morgue(id, key, digest)
  if redis.call('HEXISTS', GRAVE, id .. '\0' .. key) == 1 then
    return true
  elseif digest == '' then
    return false
  end
  -- The record of a merged job has the name of the job, or of one of the payloads in it.
  for _, grave in ipairs(redis.call('ZRANGEBYLEX', MORGUE_ID, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 250)) do
    if string.find(redis.call('HGET', GRAVE, grave) or '', key, 1, true) then
      return true
    end
  end
  return false
end

-- Return true if a durable generation, or a payload, was stored here before: a retry must not start it again. `body` is
-- that of the live job of the id, if there is one.
function is_known(id, key, digest, body)
  return redis.call('HEXISTS', MARKS, key) == 1 or (body and place_of(id, body, key, digest) ~= nil)
    or is_in_morgue(id, key, digest)
end
