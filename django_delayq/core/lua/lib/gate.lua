-- Gated content: what was scheduled for an id while that id was running. '<d due score>' and the body. One that is cut
-- off is due now: its body cannot be read, so the job goes to the morgue.
local function read_gate(packed)
  return #packed < 8 and now_us or struct.unpack('<d', packed), string.sub(packed, 9)
end

local function pack_gate(due, body)
  return struct.pack('<d', due) .. body
end

-- Return the content gated behind each of these ids. Most shards have no gated content at all, so that is checked
-- first.
local function gates_behind(ids)
  return redis.call('HLEN', GATE) > 0 and redis.call('HMGET', GATE, unpack(ids)) or {}
end

local function forget_failures(id)
  redis.call('ZREM', FAILED, id)
  redis.call('ZREM', FAILURES, id)
end

-- Makes the gated content a fresh job after the end of the attempt.
local function open_gate(id, packed)
  local due, body = read_gate(packed)
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HSET', BODY, id, body)
  redis.call('HDEL', GATE, id)
  put_due(body, text(due), id)
end

-- Deletes everything of the id except the content that is gated behind it.
local function end_run(id, gated)
  if gated then
    open_gate(id, gated)
    return
  end
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HDEL', BODY, id)
end
