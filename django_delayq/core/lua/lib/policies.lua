-- Everything beyond a fresh plain job: the inside of a function that is called for the first such entry, since creating
-- all these would take longer than the rest of a schedule() of one job.
-- Return the record as PAYLOAD has it, with its arrival behind the sortable score.
local function record_of(e)
  local arrival = struct.pack('>d', seq)
  if not e.score_is_now then
    return string.sub(e.record, 1, 8) .. arrival .. string.sub(e.record, 9)
  end
  local score, number = string.format('%.6f', now_us / 1000000), struct.pack('>d', now_us / 1000000)
  -- Positive, so flipping the sign bit makes it sortable (records/frames.py::sortable).
  return string.char(string.byte(number) + 128) .. string.sub(number, 2) .. arrival .. string.sub(e.record, 9, 24)
    .. struct.pack('<Bc0', #score, score) .. string.sub(e.record, 26)
end

local function put_payload_of(e, taken)
  add_payload(e.id, e.digest, record_of(e), tostring(e.score_policy), taken)
end

-- Return the `n` payloads that the job's policy drops first, except those in `others`.
local function first_to_go(e, n, others)
  local from, behind = range_of(e.id)
  local command, passed, members = 'ZRANGEBYLEX', {}, {}
  if e.payload_policy ~= LAST then
    command, from, behind = 'ZREVRANGEBYLEX', behind, from
  end
  for _, member in ipairs(others) do
    passed[member] = true
  end
  for _, member in ipairs(redis.call(command, ORDER, from, behind, 'LIMIT', 0, n + #others)) do
    if #members < n and not passed[member] then
      members[#members + 1] = member
    end
  end
  return members
end

-- Adds a payload to the waiting ones, whose number is limited; those of a running attempt do not count. Return h (it
-- has its most) or i(gnored) when it is not accepted: then nothing has changed.
local function merge_payload(e, taken)
  local record, policy, slot = record_of(e), tostring(e.score_policy), in_flight(taken, e.digest) and '1' or '0'
  local twin = redis.call('HGET', PAYLOAD, field_of(e.id, e.digest, slot))
  local others, from, behind = in_hand(e.id, taken), range_of(e.id)
  local waiting = redis.call('ZLEXCOUNT', ORDER, from, behind) - #others
  local too_many = waiting + (twin and 0 or 1) - e.max_payloads
  local leaving = {}
  if too_many > 0 and e.payload_policy ~= ALL then
    local kept = twin and not newer_wins(policy, twin, record) and twin or record
    if twin then
      others[#others + 1] = member_of(e.id, twin, e.digest, slot)
    end
    leaving = first_to_go(e, too_many, others)
    if comes_before(member_of(e.id, kept, e.digest, slot), leaving[too_many]) == (e.payload_policy == LAST) then
      return 'i'
    end
  elseif too_many > 0 and not twin then
    return 'h'
  end
  unite_payloads(e.id, e.digest, slot, record, policy, twin)
  drop_members(leaving, mark_payloads)
end

-- Adds the payload to the waiting ones, or replaces them by it.
local function take_in(e, taken)
  if e.conflict == MERGE then
    return merge_payload(e, taken)
  end
  drop_payloads(e.id, taken, mark_payloads)
  put_payload_of(e, taken)
end

local function choose_due(e, current, due, state)
  if e.due_policy == KEEP and state and state.failures > 0 then
    -- A correction neither waits for the back-off of the job that it corrects nor retries too often: 1 s for each
    -- failure, at most 60.
    local soonest = (state.failed_at + math.min(state.failures, 60) * 1000) * 1000
    return math.max(math.min(current, due), math.min(current, soonest))
  elseif e.due_policy == KEEP or e.due_policy == INHERIT then
    return current
  elseif e.due_policy == EARLIEST then
    return math.min(current, due)
  elseif e.due_policy == LATEST then
    return math.max(current, due)
  end
  return due
end

local function gate(e, state)
  local due, body = tonumber(due_of(e)), e.body
  local refused = e.record and take_in(e, state.taken)
  if refused then
    return refused
  end
  local gated = redis.call('HGET', GATE, e.id)
  if gated then
    local gated_due, gated_body = read_gate(gated)
    due = choose_due(e, gated_due, due)
    if e.conflict == MERGE then
      body = with_class_of(gated_body, e.body)
    end
    mark_replaced(gated_body, e.body)
  end
  redis.call('HSET', GATE, e.id, pack_gate(due, body))
  return 'g'
end

-- Return the body of a waiting job that an entry replaces.
local function body_behind(e, old)
  mark_replaced(old, e.body)
  if e.keeps_retries then
    return with_body_mark(e.body, IS_QUARANTINED, string.byte(old) >= IS_QUARANTINED)
  end
  redis.call('HDEL', STATE, e.id)
  forget_failures(e.id)
  return e.body
end

local function change_waiting(e, old)
  local current = tonumber(redis.call('ZSCORE', DUE[class_of(old)], e.id))
  local packed = redis.call('HGET', STATE, e.id)
  local due = choose_due(e, current, tonumber(due_of(e)), packed and read_state(packed))
  local refused = e.record and take_in(e, '')
  if refused then
    return refused
  end
  local is_merge = e.conflict == MERGE
  local body = is_merge and with_class_of(old, e.body) or body_behind(e, old)
  if body ~= old then
    if class_of(body) ~= class_of(old) or class_of(old) == LANE then
      leave_due(old, e.id)
    end
    redis.call('HSET', BODY, e.id, body)
  end
  if body ~= old or due ~= current then
    put_due(body, text(due), e.id)
  end
  return is_merge and 'm' or 'r'
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

return put_payload_of, change_live, is_known, expect_durable_payloads
