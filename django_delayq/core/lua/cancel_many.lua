#!lua flags=allow-oom
-- Cancel many jobs, each as cancel.lua does, but only if it is still the generation that is meant. If that one is gated
-- behind an attempt, the attempt continues and no job follows it.
-- ARGV    3 entries one after another: 'Bc0 id, Bc0 key'
-- Returns one letter for each: c(ancelled), s(topping: it is running), g (it was gated, and is deleted), r (it is gated
--         behind an attempt that left payloads behind, which cannot be distinguished from those that arrived meanwhile)
--         or n(o such generation). Fewer letters than entries: the first ones had so many payloads that the others have
--         to be sent in another call.
-- Events  bulk
-- include keys clock begin sweep window settled body state due wake bytes payload gate event
local MOST_PAYLOADS = 1000

local seen = replay()
if seen then
  return seen
end
local dropped = 0

local function drop_fields(fields)
  mark_payloads(fields)
  dropped = dropped + #fields
end

local function drop_gate(id, taken)
  dropped = dropped + redis.call('ZLEXCOUNT', ORDER, range_of(id))
  drop_gated_payloads(id, taken)
end

-- As in cancel.lua.
local function stop_run(id, body, gated)
  local s = read_state(redis.call('HGET', STATE, id))
  redis.call('HDEL', GATE, id)
  if is_merged(body) then
    drop_gate(id, s.taken)
  elseif gated then
    mark_end(key_of(gated), 'done')
  end
  set_flag(s, STOPPING)
  redis.call('HSET', STATE, id, pack_state(s))
  return 's'
end

local function close_gate(id, content)
  local taken = read_state(redis.call('HGET', STATE, id)).taken
  if not is_merged(content) then
    mark_end(key_of(content), 'done')
  elseif left_some(taken) then
    return 'r'
  else
    drop_gate(id, taken)
  end
  redis.call('HDEL', GATE, id)
  return 'g'
end

local function take_out(id, body)
  redis.call('ZREM', DUE[class_of(body)], id)
  if is_merged(body) then
    drop_payloads(id, drop_fields)
  else
    mark_end(key_of(body), 'done')
  end
  end_run(id)
  return 'c'
end

local function cancel(id, key)
  local body, gated = redis.call('HGET', BODY, id), redis.call('HGET', GATE, id)
  if gated then
    local _
    _, gated = read_gate(gated)
  end
  if body and key_of(body) == key then
    if redis.call('ZSCORE', LEASE, id) then
      return stop_run(id, body, gated)
    elseif redis.call('ZSCORE', DUE[class_of(body)], id) then
      return take_out(id, body)
    end
  elseif gated and key_of(gated) == key then
    return close_gate(id, gated)
  end
  return 'n'
end

local frame, answers, at, done = ARGV[3], {}, 1, 0
while at <= #frame and dropped < MOST_PAYLOADS do
  local id, key
  id, key, at = struct.unpack('<Bc0Bc0', frame, at)
  local letter = cancel(id, key)
  answers[#answers + 1] = letter
  if letter == 'c' then
    done = done + 1
  end
end
count('cancelled', done)
if done > 0 then
  emit_other({ outcome = 'bulk', jobs = done, created = 0, extra = 'verb:cancelled' })
  write_events('')
end
write_marks()
local reply = table.concat(answers)
remember(reply)
return reply
