-- Checks if a durable generation, or a payload, was stored here before: a retry must not start it again.
-- exports is_known
local function is_in_morgue(id, key)
  if redis.call('HEXISTS', GRAVE, id .. '\0' .. key) == 1 then
    return true
  elseif not has_durable_payloads then
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

-- Return the keys of an id's payloads, as a set; read once in a call.
local keys_of_ids = {}

local function payload_keys(id)
  local keys = keys_of_ids[id]
  if not keys then
    keys = {}
    keys_of_ids[id] = keys
    local from, behind = range_of(id)
    repeat
      local members = redis.call('ZRANGEBYLEX', ORDER, from, behind, 'LIMIT', 0, READ_AT_ONCE)
      local fields = fields_of_members(members)
      for _, value in ipairs(#fields > 0 and redis.call('HMGET', PAYLOAD, unpack(fields)) or {}) do
        keys[value and key_of_payload(value) or ''] = true
      end
      from = '(' .. (members[#members] or '')
    until #members < READ_AT_ONCE
  end
  return keys
end

local function is_payload(value, key)
  return value and key_of_payload(value) == key
end

-- `digest` is that of the payload, or '' when it is unknown.
local function is_among_payloads(id, key, digest)
  if not has_durable_payloads then
    return false
  elseif digest ~= '' then
    local both = redis.call('HMGET', PAYLOAD, field_of(id, digest, '0'), field_of(id, digest, '1'))
    return is_payload(both[1], key) or is_payload(both[2], key)
  end
  return payload_keys(id)[key] == true
end

-- `body` is that of the live job of the id, if there is one.
function is_known(id, key, digest, body)
  if redis.call('HEXISTS', MARKS, key) == 1 then
    return true
  elseif body then
    local gated = redis.call('HGET', GATE, id)
    if key_of(body) == key or (gated and key_of(string.sub(gated, 9)) == key) or is_among_payloads(id, key, digest) then
      return true
    end
  end
  return is_in_morgue(id, key)
end
