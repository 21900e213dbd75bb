#!lua
-- Puts jobs in: one entry for each, decided by its own policies.
-- ARGV    3 entries one after another: '<B conflict><B due policy><B score policy><B marks><d ms><Bc0 id><Bc0 task>
--           <I4c0 body without its task>'
--           conflict 0 merge 1 replace 2 ignore 3 error; due policy 0 keep 1 replace 2 earliest 3 latest;
--           score policy 0 min 1 max 2 first 3 last; marks 1 = ms is a delay, 2 = keep the retry state,
--           4 = merged: '<c16 digest><I4c0 payload record without arrival>' follows
--         4 '1' = one `bulk` event for the chunk
-- Returns one letter for each: created merged replaced ignored gated, e(xists), t(aken by another task).
-- Events  bulk
-- include keys clock begin sweep window body due wake
local MARK_DELAY, MARK_KEEP_RETRIES, MARK_MERGED = 1, 2, 4
local MERGE, REPLACE, IGNORE, ERROR = 0, 1, 2, 3
local KEEP, EARLIEST, LATEST = 0, 2, 3

local seen = replay()
if seen then
  return seen
end

local codes = {}

local function task_code(name)
  local code = codes[name] or find_task_code(name)
  if not code then
    local number = redis.call('HINCRBY', TASK, '\1', 1)
    code = struct.pack('<I2', number)
    redis.call('HSET', TASK, name, number, '\0' .. code, name)
  end
  codes[name] = code
  return code
end

local function read_entry(frame, at)
  local e = {}
  local task, body
  e.conflict, e.due_policy, e.score_policy, e.marks, e.ms, e.id, task, body, at =
    struct.unpack('<BBBBdBc0Bc0I4c0', frame, at)
  e.body = string.sub(body, 1, 1) .. task_code(task) .. string.sub(body, 2)
  if e.marks >= MARK_MERGED then
    e.digest, e.record, at = struct.unpack('<c16I4c0', frame, at)
  end
  return e, at
end

local function due_of(e)
  return tonumber(score_at(e.marks % 2 == MARK_DELAY and now_ms + e.ms or e.ms))
end

-- Everything beyond a fresh plain job. Made only when it is met: making its functions would take longer than all the
-- rest of a schedule() of one job.
local function make_policies()
  -- include state bytes payload gate

  -- The record in PAYLOAD carries its arrival behind the sortable score.
  local function put_payload_of(e, taken)
    if e.record then
      local record = string.sub(e.record, 1, 8) .. struct.pack('>d', seq) .. string.sub(e.record, 9)
      add_payload(e.id, e.digest, record, tostring(e.score_policy), taken)
    end
  end

  -- A correction does not wait out the back-off of what it corrects, nor does it hammer: 1 s for each failure, at
  -- most 60.
  local function due_after_failure(state, current, due)
    local soonest = (state.failed_at + math.min(state.failures, 60) * 1000) * 1000
    return math.max(math.min(current, due), math.min(current, soonest))
  end

  local function choose_due(e, current, due, state)
    if e.due_policy == KEEP then
      if state and state.failures > 0 then
        return due_after_failure(state, current, due)
      end
      return current
    elseif e.due_policy == EARLIEST then
      return math.min(current, due)
    elseif e.due_policy == LATEST then
      return math.max(current, due)
    end
    return due
  end

  local function gate(e, state)
    local due, body = due_of(e), e.body
    local gated = redis.call('HGET', GATE, e.id)
    if gated then
      local gated_due, gated_body = read_gate(gated)
      due = choose_due(e, gated_due, due)
      if e.conflict == MERGE then
        body = with_class_of(gated_body, e.body)
      end
    end
    if e.record and e.conflict == REPLACE then
      drop_gated_payloads(e.id, state.taken)
    end
    put_payload_of(e, state.taken)
    redis.call('HSET', GATE, e.id, pack_gate(due, body))
    return 'g'
  end

  local function merge_waiting(e, old, due)
    put_payload_of(e, '')
    local body = with_class_of(old, e.body)
    redis.call('HSET', BODY, e.id, body)
    put_due(body, text(due), e.id)
    return 'm'
  end

  local function replace_waiting(e, old, due)
    if e.marks % (2 * MARK_KEEP_RETRIES) < MARK_KEEP_RETRIES then
      redis.call('HDEL', STATE, e.id)
      forget_failures(e.id)
    end
    if is_merged(old) then
      drop_payloads(e.id)
    end
    put_payload_of(e, '')
    redis.call('HSET', BODY, e.id, e.body)
    put_due(e.body, text(due), e.id)
    return 'r'
  end

  local function change_waiting(e, old)
    local class = class_of(old)
    local current = tonumber(redis.call('ZSCORE', DUE[class], e.id))
    local packed = redis.call('HGET', STATE, e.id)
    local due = choose_due(e, current, due_of(e), packed and read_state(packed))
    if class_of(e.body) ~= class then
      redis.call('ZREM', DUE[class], e.id)
    end
    return e.conflict == MERGE and merge_waiting(e, old, due) or replace_waiting(e, old, due)
  end

  local function change_live(e, old)
    if task_code_of(old) ~= task_code_of(e.body) or is_merged(old) ~= is_merged(e.body) then
      return 't'
    elseif e.conflict == IGNORE then
      return 'i'
    elseif e.conflict == ERROR then
      return 'e'
    elseif redis.call('ZSCORE', LEASE, e.id) then
      return gate(e, read_state(redis.call('HGET', STATE, e.id)))
    end
    return change_waiting(e, old)
  end

  return put_payload_of, change_live
end

local put_payload_of, change_live

local function schedule(e)
  local old = redis.call('HGET', BODY, e.id)
  if (old or e.record) and not change_live then
    put_payload_of, change_live = make_policies()
  end
  if old then
    return change_live(e, old)
  end
  local due = score_at(e.marks % 2 == MARK_DELAY and now_ms + e.ms or e.ms)
  if e.record then
    put_payload_of(e, '')
  end
  redis.call('HSET', BODY, e.id, e.body)
  put_due(e.body, due, e.id)
  return 'c'
end

local before = head()
local frame, outcomes, at, n, created = ARGV[3], {}, 1, 0, 0
while at <= #frame do
  local e
  e, at = read_entry(frame, at)
  n = n + 1
  outcomes[n] = schedule(e)
  if outcomes[n] == 'c' then
    created = created + 1
  end
end
count('created', created)
count('changed', n - created)
if ARGV[4] == '1' then
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', 'bulk', 'jobs', n, 'created', created)
end
wake_if_earlier(before)
local reply = table.concat(outcomes)
remember(reply)
return reply
