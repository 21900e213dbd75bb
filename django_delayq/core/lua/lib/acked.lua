-- Ack, shared by ack.lua, ack_reserve.lua and ack_early.lua. Batched for speed, because every plain job passes here.
-- Jobs without gated content are deleted at once, with one command for each list.
-- exports ack
local function add_leaving(leaving, id, taken, failures)
  leaving.ids[#leaving.ids + 1] = id
  if failures > 0 then
    leaving.failed[#leaving.failed + 1] = id
  end
  if taken ~= '' then
    local members, fields = in_hand(id, taken)
    for i = 1, #members do
      leaving.members[#leaving.members + 1], leaving.fields[#leaving.fields + 1] = members[i], fields[i]
    end
  end
end

local function leave(leaving)
  remove_all('ZREM', LEASE, leaving.ids)
  remove_all('HDEL', STATE, leaving.ids)
  remove_all('ZREM', ORDER, leaving.members)
  remove_all('HDEL', PAYLOAD, leaving.fields)
  remove_all('HDEL', BODY, leaving.ids)
  remove_all('ZREM', FAILED, leaving.failed)
  remove_all('ZREM', FAILURES, leaving.failed)
end

-- Return tokens, ids, events and marks of the entries, each in a separate list.
local function read_acks(frame)
  local tokens, ids, events_of, marks, at, n = {}, {}, {}, {}, 1, 0
  while at <= #frame do
    local _
    n = n + 1
    tokens[n], _, marks[n], ids[n], events_of[n], at = struct.unpack('<ddI2Bc0I2c0', frame, at)
  end
  return tokens, ids, events_of, marks
end

-- Calls `keep`, if given, with the id and the state of each job before its deletion; such a job is counted when its
-- attempt ends.
function ack(frame, keep)
  local tokens, ids, events_of, marks = read_acks(frame)
  if #ids == 0 then
    return ''
  end
  local states, gates = redis.call('HMGET', STATE, unpack(ids)), gates_behind(ids)
  local answers, leaving, acked, done = {}, { ids = {}, failed = {}, members = {}, fields = {} }, 0, {}
  for i, id in ipairs(ids) do
    local s = read_state(states[i])
    if s.token ~= tokens[i] or done[id] or (marks[i] >= MARK.EXPIRED and not has_run_out(id)) then
      answers[i] = '0'
    else
      answers[i] = '1'
      done[id] = true
      acked = acked + 1
      if keep then
        keep(id, s)
      end
      local taken = s.taken
      if marks[i] % MARK.EXPIRED >= MARK.DURABLE then
        mark_run(id, taken)
      end
      if gates[i] or left_some(taken) then
        redis.call('ZREM', LEASE, id)
        finish_run(id, taken, gates[i])
      else
        add_leaving(leaving, id, taken, s.failures)
      end
      emit(events_of[i])
    end
  end
  leave(leaving)
  write_marks()
  write_events(settler)
  if not keep then
    count('acked', acked)
  end
  count('late', #ids - acked)
  return table.concat(answers)
end
