-- The verbs of settle.lua, for every attempt whose end is more than the deletion of a job: the inside of a function that is
-- called for the first of them.
-- An entry has id, token, verb, event (missing = none is wanted), gated (the content behind its attempt) and, but for acks,
-- outcome; and where they are not empty reason, error_class, error, delay (ms; missing = the job's old place), priority
-- (of a release: a byte with the new one) and score_policy (0 min, 1 max, 2 first, 3 last; missing = 0: it decides
-- between a returned payload and an equal one that arrived since). Marks, true or missing:
-- durable     of an ack: the end, or that of a payload, is awaited outside Redis
-- once        of a record: only if no end of the attempt is stored
-- quarantine  the job waits for quarantine from now on
-- own_crash   the process died during the attempt, and no other job can have caused that
-- oldest      of a bury: only the first payload
-- inherit     content that arrived meanwhile does not shorten the back-off
-- unclear     of a release: a start of the job may not have been recorded
-- postpone    of a release: the attempt could not begin
-- began       of a release: the attempt began
-- timed_out   of a bury: the attempt's time limit ended it

-- Marks what an attempt held as done; to be called before its payloads and its state are deleted.
local function mark_attempt(e, s)
  if #s.taken > 0 then
    local _, fields = in_hand(e.id, s.taken)
    return mark_payloads(fields)
  end
  local body = redis.call('HGET', BODY, e.id) or ''
  if not is_merged(body) then
    mark_end(key_of(body), 'done')
  end
end

-- What the attempt of a merged job leaves is a generation of its own, due now. Its key follows from the old one, so that
-- inbox and morgue treat it as another job, with the time of its creation (job.created_ms). Its end is not awaited, so
-- it is not durable.
local function put_rest(e, body)
  local old = key_of(body)
  local key = string.char(string.byte(old) % 128) .. string.sub(old, 2, 7) .. string.sub(digest_of_bytes(old), 8)
  body = without_quarantine(with_key(body, key))
  if e.gated then
    local _, gated_body = read_gate(e.gated)
    body = with_class_of(body, gated_body)
  end
  begin_afresh(e.id, body, score_at(now_ms))
end

-- Ends the job, whose attempt is over: the content behind it, or what the attempt left, becomes a job of its own.
local function end_job(e, s, has_rest)
  if has_rest and #payloads_of(e.id, 1) > 0 then
    put_rest(e, redis.call('HGET', BODY, e.id) or '')
  elseif e.gated then
    open_gate(e.id, e.gated)
  else
    delete_later(e.id, s.failures > 0, '')
  end
end

local function finish(e, s)
  local has_rest = left_some(s.taken)
  if not e.gated and not has_rest then
    return delete_later(e.id, s.failures > 0, s.taken)
  end
  finish_payloads(e.id, s.taken, e.gated)
  end_job(e, s, has_rest)
end

-- Lets the job wait again: same content, united with what was gated behind it, due at `due`, or when that is due if this
-- is earlier.
local function wait_again(e, s, due)
  local stored = redis.call('HGET', BODY, e.id) or ''
  local body = with_body_mark(stored, IS_QUARANTINED, e.quarantine == true)
  if e.priority then
    body = with_class_of(body, e.priority)
  end
  if e.gated then
    local gated_due, gated_body = read_gate(e.gated)
    return_payloads(e.id, s.taken, tostring(e.score_policy or 0), e.gated)
    if not e.inherit then
      due = math.min(due, gated_due)
    end
    body = with_class_of(body, gated_body)
    redis.call('HDEL', GATE, e.id)
  end
  if body ~= stored then
    redis.call('HSET', BODY, e.id, body)
  end
  s.token, s.worker, s.taken, s.started, s.unrenewed, s.permit = nil, nil, nil, nil, nil, nil
  if s.postponed_at then
    s.postponed_to = due
  else
    s.due = nil
  end
  put_state(e.id, s)
  put_due(body, text(due), e.id)
end

-- include grave

-- A merged job of which only the first payload is buried is retried as a fresh job. The record has the payload's own key,
-- and so has the job that is made of it when it is kicked.
local function bury_first_payload(e, s, body)
  local first, rest = string.sub(s.taken, 1, TAKEN), string.sub(s.taken, TAKEN + 1)
  local records = taken_payloads(e.id, first)
  bury(e.id, records[1] and with_key(body, key_of_payload(records[1])) or body, s, e, records)
  finish_payloads(e.id, first, e.gated)
  return_payloads(e.id, rest, tostring(e.score_policy or 0), e.gated)
  end_job(e, s, rest ~= '')
end

local verbs = {}

local function name_of_begun(e)
  return struct.pack('<d', e.token) .. e.id
end

function verbs.ack(e, s)
  if e.durable then
    mark_attempt(e, s)
  end
  finish(e, s)
  return 'acked'
end

-- The attempt begins now. Only its record is kept, until its end is stored (record). If its process dies before, another
-- worker finds it (begun.lua).
function verbs.ack_early(e, s)
  local body = redis.call('HGET', BODY, e.id) or ''
  redis.call('HSET', BEGUN, name_of_begun(e),
    cmsgpack.pack({ e.id, now_ms, body, s, taken_payloads(e.id, s.taken) }))
  verbs.ack(e, s)
end

-- Buries only what this attempt held: payloads that arrived since are gated content and stay live.
function verbs.bury(e, s)
  if e.outcome == 'poison' then
    increment(s, 'crashes')
  end
  if e.outcome ~= 'undecodable' then
    increment(s, 'failures')
  end
  local body = redis.call('HGET', BODY, e.id) or ''
  if e.oldest and #s.taken >= TAKEN then
    bury_first_payload(e, s, body)
  else
    bury(e.id, body, s, e, is_merged(body) and taken_payloads(e.id, s.taken) or nil)
    finish(e, s)
  end
  return 'buried'
end

-- A counted attempt failed, timed out or crashed; delay is the back-off.
function verbs.fail(e, s)
  increment(s, 'failures')
  s.failed_at, s.error = now_ms, e.error
  if e.outcome == 'crashed' then
    increment(s, 'crashes')
  end
  if e.own_crash then
    increment(s, 'own_crashes')
  end
  s.unclear = nil
  forget_postponement(s)
  wait_again(e, s, tonumber(score_at(now_ms + math.max(e.delay or 0, 0))))
  redis.call('ZADD', FAILED, score_at(now_ms), e.id)
  redis.call('ZADD', FAILURES, s.failures, e.id)
  return e.outcome
end

-- The job goes back without counting an attempt. Of an attempt that could not begin the time counts from the first of the
-- releases in a row for the same reason.
function verbs.release(e, s)
  s.unclear = e.unclear
  local reason = e.reason or ''
  if e.postpone and s.postponed_for ~= reason then
    s.postponed_at, s.postponed_for = now_ms, reason
  elseif e.began and not e.postpone then
    forget_postponement(s)
  end
  wait_again(e, s, e.delay and tonumber(score_at(now_ms + e.delay)) or s.due)
  return 'released'
end

-- Return the counter of a job that does not come back, however its attempt ended: it is cancelled, was handed out too late to
-- be useful, or is plain and newer content is gated behind it.
local function gives_way(e, s)
  if s.stopping then
    e.event = e.event and 'cancelled' .. string.sub(e.event, #e.outcome + 1)
    return 'cancelled'
  elseif e.verb == 'expire' then
    if not e.gated and left_some(s.taken) then -- what its attempt left is as late
      drop_payloads(e.id, s.taken, mark_payloads)
    end
    return 'expired'
  elseif e.gated and s.taken == '' and (e.verb == 'fail' or e.verb == 'release') then
    return 'superseded'
  end
end

-- Ends the attempt of an entry.
local function settle(e, s)
  if e.timed_out or e.outcome == 'timeout' then
    increment(s, 'timeouts')
  end
  local counter = string.sub(e.verb, 1, 3) ~= 'ack' and gives_way(e, s)
  if counter then
    mark_attempt(e, s)
    finish(e, s)
  else
    counter = verbs[e.verb](e, s)
  end
  emit(e.event)
  if counter then
    increment_count(counter)
  end
end

-- Records the end of an attempt whose job was acked when it began: its event, and the counter that was left out then.
-- Return false if an end is stored already, and that matters.
local function record(e)
  local is_open = redis.call('HDEL', BEGUN, name_of_begun(e)) == 1
  if is_open then
    increment_count(e.outcome == 'succeeded' and 'acked' or e.outcome)
  end
  if is_open or not e.once then
    emit(e.event)
    return true
  end
end

-- Answers the entries. Return a function that ends the attempts of those which are held, after their leases.
return function(entries)
  local ids = {}
  for i, e in ipairs(entries) do
    ids[i] = e.id
  end
  local states, gates = read_held(ids)
  for i, e in ipairs(entries) do
    if e.verb == 'record' then
      answer(record(e))
    elseif is_done[e.id] or not has_token(states[i], e.token) then
      answer(false)
    else
      answer(true, e.id)
      e.gated = gates[i] or nil
      others[#others + 1] = e
      states_of_others[#others] = states[i]
    end
  end
  return function()
    for i, e in ipairs(others) do
      settle(e, read_state(states_of_others[i]))
    end
  end
end
