-- Ack, shared by ack.lua and ack_reserve.lua: batched, because blank jobs pass here at full speed.
local function ack_plain(ids, scored)
  redis.call('ZREM', LEASE, unpack(ids))
  redis.call('HDEL', STATE, unpack(ids))
  redis.call('HDEL', BODY, unpack(ids))
  for _, id in ipairs(scored) do
    forget_failures(id)
  end
end

local function ack_one(id, packed, body)
  redis.call('ZREM', LEASE, id)
  if is_merged(body) then
    finish_payloads(id, read_state(packed).taken)
    if redis.call('HEXISTS', GATE, id) == 0 and has_payloads(id) then
      put_rest(id, body)
      return
    end
  end
  end_run(id)
end

local function read_acks(frame)
  local entries, ids, at = {}, {}, 1
  while at <= #frame do
    local e
    e, at = read_entry(frame, at, false)
    entries[#entries + 1] = e
    ids[#ids + 1] = e.id
  end
  return entries, ids
end

local function ack(frame)
  local entries, ids = read_acks(frame)
  if #ids == 0 then
    return ''
  end
  local states = redis.call('HMGET', STATE, unpack(ids))
  local bodies = redis.call('HMGET', BODY, unpack(ids))
  local gated = redis.call('HLEN', GATE) > 0
  local answers, plain, scored, acked, done = {}, {}, {}, 0, {}
  for i, e in ipairs(entries) do
    local packed = states[i]
    local token, failures = -1, 0
    if packed then
      local _
      token, _, failures = struct.unpack('<ddI2', packed)
    end
    if token ~= e.token or done[e.id] then
      answers[i] = '0'
    else
      answers[i] = '1'
      done[e.id] = true
      acked = acked + 1
      if gated or is_merged(bodies[i] or '') then
        ack_one(e.id, packed, bodies[i] or '')
      else
        plain[#plain + 1] = e.id
        if failures > 0 then
          scored[#scored + 1] = e.id
        end
      end
      emit_entry(e, 'succeeded')
    end
  end
  if #plain > 0 then
    ack_plain(plain, scored)
  end
  count('acked', acked)
  count('late', #entries - acked)
  return table.concat(answers)
end
