-- Ack, shared by ack.lua, ack_reserve.lua and ack_early.lua. Batched for speed, because every plain job passes here.
-- Jobs without gated content are deleted at once, with one command for each list.
-- exports ack
local function add_leaving(leaving, id, taken, has_failed)
  leaving.ids[#leaving.ids + 1] = id
  if has_failed then
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

-- Calls `keep`, if given, with the id and the state of each job before its deletion; such a job is counted when its
-- attempt ends.
function ack(packed, keep)
  local entries = cmsgpack.unpack(packed)
  local ids = ids_of(entries)
  if #ids == 0 then
    return ''
  end
  local states, gates = redis.call('HMGET', STATE, unpack(ids)), gates_behind(ids)
  local answers, leaving, acked, done = {}, { ids = {}, failed = {}, members = {}, fields = {} }, 0, {}
  for i, e in ipairs(entries) do
    local id, state = e.id, states[i]
    if not has_token(state, e.token) or done[id] or (e.expired and not has_run_out(id)) then
      answers[i] = '0'
    else
      answers[i] = '1'
      done[id] = true
      acked = acked + 1
      if keep then
        keep(id, read_state(state))
      end
      -- A map is searched much faster than it is read. Other text in it may contain these words, which does no harm.
      local taken = string.find(state, 'taken', 1, true) and read_state(state).taken or ''
      if e.durable then
        mark_run(id, taken)
      end
      if gates[i] or left_some(taken) then
        redis.call('ZREM', LEASE, id)
        finish_run(id, taken, gates[i])
      else
        add_leaving(leaving, id, taken, string.find(state, 'failures', 1, true))
      end
      emit(e.event)
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
