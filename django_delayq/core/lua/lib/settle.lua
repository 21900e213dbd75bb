-- How held jobs leave their holder's hands. ARGV[3] worker, ARGV[4] entries one after another:
-- '<d token><d delay ms, -1 = old place><B marks><Bc0 id><I2c0 run>', the run being the texts of its event
-- 'Bc0 task, key, due, started, ms, attempt' or empty, and for every verb but ack
-- 'Bc0 outcome, reason, error class, I2c0 error'.
local MARK_MERGED, MARK_EXPIRED, MARK_SUSPECT, MARK_CRASH = 1, 2, 4, 8
local settler = ARGV[3]

local function has_mark(entry, mark)
  return math.floor(entry.marks / mark) % 2 == 1
end

local function read_entry(frame, at)
  local e = {}
  e.token, e.delay, e.marks, e.id, e.run, e.outcome, e.reason, e.error_class, e.error, at =
    struct.unpack('<ddBBc0I2c0Bc0Bc0Bc0I2c0', frame, at)
  return e, at
end

-- Whether the lease is over; during a reaper hold none is.
local function has_run_out(id)
  local deadline = tonumber(redis.call('ZSCORE', LEASE, id))
  return deadline and deadline <= now_ms and now_ms >= hold_ms
end

-- The state of the job if the caller still holds it, else nil: then nothing may change.
local function held(e)
  local packed = redis.call('HGET', STATE, e.id)
  if not packed or struct.unpack('<d', packed) ~= e.token then
    return nil
  end
  if has_mark(e, MARK_EXPIRED) and not has_run_out(e.id) then
    return nil
  end
  return packed
end

-- Runs `settle(entry, state)` for every entry that is still held; answers one '1' or '0' for each.
local function settle_all(frame, settle)
  local before = head()
  local answers, late, at, n = {}, 0, 1, 0
  while at <= #frame do
    local e
    e, at = read_entry(frame, at)
    n = n + 1
    local packed = held(e)
    if packed then
      redis.call('ZREM', LEASE, e.id)
      settle(e, read_state(packed))
      answers[n] = '1'
    else
      late = late + 1
      answers[n] = '0'
    end
  end
  count('late', late)
  wake_if_earlier(before)
  local reply = table.concat(answers)
  remember(reply)
  return reply
end

-- A merged job had more payloads than one run takes: the rest is a generation of its own, due now. Its key follows from
-- the old one, so that inbox and morgue take it for another job.
local function put_rest(id, body)
  local key = digest_of_bytes(string.sub(body, 4, 19))
  body = string.sub(body, 1, 3) .. key .. string.sub(body, 20)
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HSET', BODY, id, body)
  put_due(body, score_at(now_ms), id)
end

local function emit_entry(e, outcome)
  emit(outcome, e.id, e.run, settler, e.error_class)
end

-- A cancelled run does not come back, however it ended; a plain one also gives way to what was gated behind it.
local function gives_way(e, s, body)
  local merged = is_merged(body)
  if has_flag(s, STOPPING) then
    if merged then
      finish_payloads(e.id, s.taken)
    end
    end_run(e.id)
    count('cancelled', 1)
    emit_entry(e, 'cancelled')
    return true
  end
  if not merged and redis.call('HEXISTS', GATE, e.id) == 1 then
    end_run(e.id)
    count('superseded', 1)
    emit_entry(e, e.outcome)
    return true
  end
  return false
end

-- The job waits again: same content, united with what was gated behind it, due at `due` or earlier if that is.
local function wait_again(e, s, body, due)
  if is_merged(body) then
    return_payloads(e.id, s.taken)
    local gated = redis.call('HGET', GATE, e.id)
    if gated then
      due = math.min(due, (read_gate(gated)))
      redis.call('HDEL', GATE, e.id)
    end
  end
  s.token, s.worker, s.taken, s.due = 0, '', '', 0
  clear_flag(s, STARTED)
  redis.call('HSET', STATE, e.id, pack_state(s))
  put_due(body, text(due), e.id)
end
