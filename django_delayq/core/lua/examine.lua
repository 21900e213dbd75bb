#!lua flags=allow-oom
-- Check the invariants of some ids, and repair violations on request.
-- ARGV    3 '1' = repair; 4 kind of what is checked; 5 list of these: ids, names of morgue records (grave), fields of
--         PAYLOAD (payload) or members of PARKED_ORDER (parked)
-- Returns {violation, id, ...}.
-- Events  none
-- include keys clock begin marks body state due payload gate
local repair = ARGV[3] == '1'
local findings = {}

local function report(violation, id, mend)
  findings[#findings + 1] = violation
  findings[#findings + 1] = id
  if repair and mend then
    mend()
  end
end

local function classes_of(id)
  local classes = {}
  for class = 1, #DUE do
    if redis.call('ZSCORE', DUE[class], id) then
      classes[#classes + 1] = class
    end
  end
  return classes
end

local function leave_places(id)
  leave_due(redis.call('HGET', BODY, id) or '', id)
  redis.call('ZREM', LEASE, id)
  for class = 1, #DUE do
    redis.call('ZREM', DUE[class], id)
  end
end

local function wait_now(id, body)
  leave_places(id)
  put_due(body, score_at(now_ms), id)
end

local function forget_all(id)
  leave_places(id)
  forget_failures(id)
  redis.call('HDEL', STATE, id)
  redis.call('HDEL', GATE, id)
  drop_payloads(id, '')
end

local function free_token(id)
  local s = read_state(redis.call('HGET', STATE, id))
  s.token, s.worker, s.taken = nil, nil, nil
  put_state(id, s)
end

local function check_place(id, body, leased)
  local classes = classes_of(id)
  local places = #classes + (leased and 1 or 0)
  if not body then
    if places > 0 then
      report('index without body', id, function() forget_all(id) end)
    end
  elseif places == 0 then
    report('body without place', id, function() wait_now(id, body) end)
  elseif places > 1 then
    report('in two places', id, function() wait_now(id, body) end)
  elseif not leased and classes[1] ~= class_of(body) then
    report('wrong priority class', id, function() wait_now(id, body) end)
  elseif leased and class_of(body) == PARKED then
    report('parked while reserved', id, function() redis.call('HSET', BODY, id, with_body_mark(body, IS_PARKED, false)) end)
  elseif classes[1] == PARKED
    and not redis.call('ZSCORE', PARKED_ORDER, parked_member(body, tonumber(redis.call('ZSCORE', DUE[PARKED], id)), id)) then
    report('parked job without order', id, function() wait_now(id, body) end)
  end
end

local function check_state(id, body, leased, packed)
  local s = read_state(packed)
  if packed and not body then
    report('state without body', id, function() redis.call('HDEL', STATE, id) end)
  elseif leased and not s.token then
    report('lease without token', id, function() if body then wait_now(id, body) end end)
  elseif not leased and s.token then
    report('token without lease', id, function() free_token(id) end)
  end
  local failed, failures = redis.call('ZSCORE', FAILED, id), tonumber(redis.call('ZSCORE', FAILURES, id)) or 0
  if (s.failures > 0) ~= (failed and true or false) or failures ~= s.failures then
    report('failure index', id, function()
      forget_failures(id)
      if s.failures > 0 then
        redis.call('ZADD', FAILED, score_at(s.failed_at), id)
        redis.call('ZADD', FAILURES, s.failures, id)
      end
    end)
  end
  return s
end

local function check_gate(id, body, leased)
  local gated = redis.call('HGET', GATE, id)
  if gated and not leased then
    report('gate without run', id, function()
      if body and is_merged(body) then
        redis.call('HDEL', GATE, id)
      else
        -- As at the end of every attempt that does not return: the newer content replaces it. No completion is written
        -- for the older content, so a caller that waits for it sends it again.
        leave_places(id)
        open_gate(id, gated)
      end
    end)
  end
end

-- Content that arrived during an attempt is gated: without a gate, its payloads would be missed when the attempt ends.
local function check_what_came(id, body, came, taken)
  local gated = redis.call('HEXISTS', GATE, id) == 1
  if came > 0 and not gated and not left_some(taken) then
    report('payloads behind run without gate', id, function()
      redis.call('HSET', GATE, id, pack_gate(tonumber(score_at(now_ms)), body))
    end)
  elseif came == 0 and gated then
    report('gate without payload', id, function() redis.call('HDEL', GATE, id) end)
  end
end

local function check_payloads(id, body, leased, s)
  local seen, came, flying = 0, 0, {}
  for _, member in ipairs((in_hand(id, s.taken))) do
    flying[member] = true
  end
  for _, member in ipairs(payloads_of(id, -1)) do
    seen = seen + 1
    came = came + (flying[member] and 0 or 1)
    local digest, slot = string.sub(member, -17, -2), string.sub(member, -1)
    local value = redis.call('HGET', PAYLOAD, field_of(id, digest, slot))
    if not value or member_of(id, value, digest, slot) ~= member then
      report('payload order without payload', id, function() redis.call('ZREM', ORDER, member) end)
    elseif slot == '1' and not (leased and in_flight(s.taken, digest)) then
      report('payload twin without run', id, function()
        add_payload(id, digest, value, '0', '')
        drop_payload(id, digest, '1', value)
      end)
    end
  end
  if not (body and is_merged(body)) then
    if seen > 0 then
      report('payloads without merged job', id, function() drop_payloads(id, '') end)
    end
  elseif seen == 0 then
    report('merged job without payload', id, function()
      forget_all(id)
      redis.call('HDEL', BODY, id)
    end)
  elseif leased then
    check_what_came(id, body, came, s.taken)
  end
end

local function examine_once(id)
  local body = redis.call('HGET', BODY, id)
  local leased = redis.call('ZSCORE', LEASE, id)
  check_place(id, body, leased)
  local s = check_state(id, body, leased, redis.call('HGET', STATE, id))
  check_gate(id, body, leased)
  check_payloads(id, body, leased, s)
end

-- A repair may reveal the next violation: a job that lost its lease still has the token of that lease.
local function examine(id)
  for _ = 1, repair and 5 or 1 do
    local found_before = #findings
    examine_once(id)
    if #findings == found_before then
      return
    end
  end
end

local function examine_grave(grave)
  local record = redis.call('HGET', GRAVE, grave)
  local by_time, by_id = redis.call('ZSCORE', MORGUE, grave), redis.call('ZSCORE', MORGUE_ID, grave)
  if not record then
    report('grave without record', grave, function()
      redis.call('ZREM', MORGUE, grave)
      redis.call('ZREM', MORGUE_ID, grave)
    end)
  elseif not (by_time and by_id) then
    report('grave without index', grave, function()
      redis.call('ZADD', MORGUE_ID, 0, grave)
      redis.call('ZADD', MORGUE, 'NX', score_at(now_ms), grave)
    end)
  end
end

-- A payload without an entry in ORDER is never handed out. A live job gets the entry back; without a job the payload is
-- deleted.
local function examine_payload(field)
  local id, digest, slot = string.sub(field, 1, -19), string.sub(field, -17, -2), string.sub(field, -1)
  local value = redis.call('HGET', PAYLOAD, field)
  if value and not redis.call('ZSCORE', ORDER, member_of(id, value, digest, slot)) then
    report('payload without order', id, function()
      local body = redis.call('HGET', BODY, id)
      if body and is_merged(body) then
        redis.call('ZADD', ORDER, 0, member_of(id, value, digest, slot))
      else
        redis.call('HDEL', PAYLOAD, field)
      end
    end)
  end
end

-- A place in the order of the parked jobs whose job is not parked there delays the jobs behind it.
local function examine_parked(member)
  local id = string.sub(member, 12)
  local body, due = redis.call('HGET', BODY, id), redis.call('ZSCORE', DUE[PARKED], id)
  if not body or not due or parked_member(body, tonumber(due), id) ~= member then
    report('parked order without parked job', id, function() redis.call('ZREM', PARKED_ORDER, member) end)
  end
end

local check = { id = examine, grave = examine_grave, payload = examine_payload, parked = examine_parked }
for _, subject in ipairs(cmsgpack.unpack(ARGV[5])) do
  check[ARGV[4]](subject)
end
if repair and #findings > 0 then
  write_marks()
  keep_clock()
end
return findings
