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

-- Tokens, ids, runs and marks of the entries, each in a list of its own.
local function read_acks(frame)
  local tokens, ids, runs, marks, at, n = {}, {}, {}, {}, 1, 0
  while at <= #frame do
    local _
    n = n + 1
    tokens[n], _, marks[n], ids[n], runs[n], at = struct.unpack('<ddBBc0I2c0', frame, at)
  end
  return tokens, ids, runs, marks
end

local function ack(frame)
  local tokens, ids, runs, marks = read_acks(frame)
  if #ids == 0 then
    return ''
  end
  local states = redis.call('HMGET', STATE, unpack(ids))
  local gated = redis.call('HLEN', GATE) > 0
  local answers, plain, scored, acked, done = {}, {}, {}, 0, {}
  for i, id in ipairs(ids) do
    local token, _, failures = -1, 0, 0
    if states[i] then
      token, _, failures = struct.unpack('<ddI2', states[i])
    end
    if token ~= tokens[i] or done[id] or (marks[i] >= MARK_EXPIRED and not has_run_out(id)) then
      answers[i] = '0'
    else
      answers[i] = '1'
      done[id] = true
      acked = acked + 1
      if gated or marks[i] % 2 == MARK_MERGED then
        ack_one(id, states[i], redis.call('HGET', BODY, id) or '')
      else
        plain[#plain + 1] = id
        if failures > 0 then
          scored[#scored + 1] = id
        end
      end
      emit('succeeded', id, runs[i], settler, '')
    end
  end
  if #plain > 0 then
    ack_plain(plain, scored)
  end
  count('acked', acked)
  count('late', #ids - acked)
  return table.concat(answers)
end
