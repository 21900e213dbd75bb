-- End of the leases of held jobs. ARGV[3] worker, ARGV[4] entries: maps of id, token, event (missing = none is wanted),
-- and for every verb but ack outcome, reason, error_class, error, delay (ms; missing = the job's old place), priority
-- (of a release: a byte with the new one) and score_policy (0 min, 1 max, 2 first, 3 last: it decides between a
-- returned payload and an equal one that arrived since). Marks, true or missing:
-- durable     of an ack: the end, or that of a payload, is awaited outside Redis
-- expired     only if the lease has run out; of a record: only if no end of the attempt is stored
-- quarantine  the job waits for quarantine from now on
-- own_crash   the process died during the attempt, and no other job can have caused that
-- oldest      of a bury: only the first payload
-- inherit     content that arrived meanwhile does not shorten the back-off
-- unclear     of a release: a start of the job may not have been recorded
-- postpone    of a release: the attempt could not begin
-- began       of a release: the attempt began
-- timed_out   of a bury: the attempt's time limit ended it
-- exports settle_all give_way wait_again

-- Return true if the caller still holds the job in this state; if not, nothing may change. A lease whose state cannot be
-- read has no token: it ends when it has run out.
local function is_held(e, s)
  if e.expired then
    return (s.token or 0) == e.token and has_run_out(e.id)
  end
  return s.token == e.token
end

-- End the leases of the entries that are still held. Return their states and the content gated behind them, by id, and
-- one '1' or '0' for each entry.
local function end_leases(entries, ids)
  local states, answers, held, held_ids = redis.call('HMGET', STATE, unpack(ids)), {}, {}, {}
  for i, e in ipairs(entries) do
    answers[i] = '0'
    local s = not held[e.id] and read_state(states[i])
    if s and is_held(e, s) then
      answers[i] = '1'
      held[e.id] = s
      held_ids[#held_ids + 1] = e.id
    end
  end
  local gates = {}
  if #held_ids > 0 then
    redis.call('ZREM', LEASE, unpack(held_ids))
    for i, gated in ipairs(gates_behind(held_ids)) do
      gates[held_ids[i]] = gated
    end
  end
  return held, gates, answers
end

-- A cancelled job does not come back, however its attempt ended. Return its counter, or nil if it is not cancelled.
local function stop(e, s)
  if s.stopping then
    mark_run(e.id, s.taken)
    finish_payloads(e.id, s.taken, e.gated)
    end_run(e.id, e.gated)
    if e.event then
      emit('cancelled' .. string.sub(e.event, #e.outcome + 1))
    end
    return 'cancelled'
  end
end

-- Call `settle(entry, state)` for every entry that is still held, unless its job was cancelled; it returns the name of the
-- counter to increment. Return one '1' or '0' for each entry.
function settle_all(packed, settle)
  local before, entries = head(), cmsgpack.unpack(packed)
  local ids = ids_of(entries)
  if #ids == 0 then
    return ''
  end
  local held, gates, answers = end_leases(entries, ids)
  local counts = { late = 0 }
  for i, e in ipairs(entries) do
    local counter = 'late'
    if answers[i] == '1' then
      e.gated = gates[e.id] or nil
      local s = held[e.id]
      if e.timed_out or e.outcome == 'timeout' or e.expired then
        increment(s, 'timeouts')
      end
      counter = stop(e, s) or settle(e, s)
    end
    counts[counter] = (counts[counter] or 0) + 1
  end
  for counter, n in pairs(counts) do
    count(counter, n)
  end
  wake_if_earlier(before)
  write_marks()
  write_events(settler)
  local reply = table.concat(answers)
  remember(reply)
  return reply
end

-- A plain job with newer content gated behind it does not come back. Return its counter, or nil if there is none.
function give_way(e, s)
  if e.gated and #s.taken == 0 then
    mark_run(e.id, s.taken)
    end_run(e.id, e.gated)
    emit(e.event)
    return 'superseded'
  end
end

-- Let the job wait again: same content, united with what was gated behind it, due at `due`, or when that is due if this
-- is earlier.
function wait_again(e, s, due)
  local stored = redis.call('HGET', BODY, e.id) or ''
  local body = with_body_mark(stored, IS_QUARANTINED, e.quarantine == true)
  if e.gated then
    local gated_due, gated_body = read_gate(e.gated)
    return_payloads(e.id, s.taken, tostring(e.score_policy), e.gated)
    if not e.inherit then
      due = math.min(due, gated_due)
    end
    body = with_class_of(body, gated_body)
    redis.call('HDEL', GATE, e.id)
  end
  if body ~= stored then
    redis.call('HSET', BODY, e.id, body)
  end
  s.token, s.worker, s.taken, s.started, s.unrenewed = nil, nil, nil, nil, nil
  if s.postponed_at then
    s.postponed_to = due
  else
    s.due = nil
  end
  put_state(e.id, s)
  put_due(body, text(due), e.id)
end
