-- Gated content: what was scheduled for an id while that id was running. '<d due score>' and the body. One that is cut
-- off is due now: its body cannot be read, so the job goes to the morgue.
local function read_gate(packed)
  return #packed < 8 and now_us or struct.unpack('<d', packed), string.sub(packed, 9)
end

local function pack_gate(due, body)
  return struct.pack('<d', due) .. body
end

local function forget_failures(id)
  redis.call('ZREM', FAILED, id)
  redis.call('ZREM', FAILURES, id)
end

-- Makes a fresh job of what an attempt leaves at its end, or of what is gated behind it.
local function begin_afresh(id, body, score)
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HSET', BODY, id, body)
  redis.call('HDEL', GATE, id)
  put_due(body, score, id)
end

local function open_gate(id, packed)
  local due, body = read_gate(packed)
  begin_afresh(id, body, text(due))
end

-- Marks the end of a plain job's generation that another one replaces.
local function mark_replaced(old, new)
  if not is_merged(old) and key_of(old) ~= key_of(new) then
    mark_end(key_of(old), 'done')
  end
end
