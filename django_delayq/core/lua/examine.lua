#!lua flags=allow-oom
-- Check the invariants of some ids, and repair violations on request.
-- ARGV    3 '1' = repair; 4 kind of what is checked; 5 list of these: ids, names of morgue records (grave), fields of
--         PAYLOAD (payload), members of LANE_ORDER (lane) or of TURNS (turn)
-- Returns {violation, id, ...}.
-- Events  none
-- include keys clock begin marks body state due payload gate
local repair = ARGV[3] == '1'
local lanes = get_lanes()
local findings = {}

local function report(violation, subject)
  findings[#findings + 1], findings[#findings + 2] = violation, subject
end

-- Return what is stored of an id. `held`: it is reserved as it should be; `kept`: number of its payloads, `came`: of those
-- that arrived during the attempt, `lost`: entries of ORDER without a payload, `twins`: those that no attempt explains.
local function facts_of(id)
  local body, leased = redis.call('HGET', BODY, id), redis.call('ZSCORE', LEASE, id)
  local packed, gated = redis.call('HGET', STATE, id), redis.call('HGET', GATE, id)
  local s, classes, flying, lost, twins, kept, came = read_state(packed), {}, {}, {}, {}, 0, 0
  for class = 1, #DUE do
    if redis.call('ZSCORE', DUE[class], id) then
      classes[#classes + 1] = class
    end
  end
  local held = leased and s.token and #classes == 0
  for _, member in ipairs((in_hand(id, s.taken))) do
    flying[member] = true
  end
  for _, member in ipairs(payloads_of(id, -1)) do
    local digest, slot = string.sub(member, -17, -2), string.sub(member, -1)
    local value = redis.call('HGET', PAYLOAD, field_of(id, digest, slot))
    if not value or member_of(id, value, digest, slot) ~= member then
      lost[#lost + 1] = member
    else
      kept, came = kept + 1, came + (flying[member] and 0 or 1)
      if slot == '1' and not (held and in_flight(s.taken, digest)) then
        twins[#twins + 1] = { digest, value }
      end
    end
  end
  return {
    id = id, body = body, merged = body and is_merged(body), leased = leased, packed = packed, gated = gated, s = s,
    classes = classes, held = held, lost = lost, twins = twins, kept = kept, came = came,
  }
end

-- Return true if the job waits where its body says, and nowhere else.
local function is_in_place(f)
  local class = class_of(f.body)
  if f.leased or #f.classes ~= 1 or f.classes[1] ~= class then
    return false
  elseif class ~= LANE then
    return true
  end
  local place = lanes.member(f.body, redis.call('ZSCORE', DUE[LANE], f.id), f.id)
  return redis.call('ZSCORE', LANE_ORDER, place) and redis.call('ZSCORE', TURNS, lanes.of(f.body))
end

local function violations_of(f)
  local body, s, places = f.body, f.s, #f.classes + (f.leased and 1 or 0)
  local class, waits = body and class_of(body), body and not f.leased and places == 1
  local failed, failures = redis.call('ZSCORE', FAILED, f.id), tonumber(redis.call('ZSCORE', FAILURES, f.id)) or 0
  local run = f.held and f.merged and f.kept > 0
  return {
    { not body and places > 0, 'index without body' },
    { body and places == 0, 'body without place' },
    { body and places > 1, 'in two places' },
    { waits and f.classes[1] ~= class, 'wrong priority class' },
    { waits and f.classes[1] == class and not is_in_place(f), 'job in a lane without order or turn' },
    { f.packed and not body, 'state without body' },
    { body and f.leased and not s.token, 'lease without token' },
    { body and s.token and not f.leased, 'token without lease' },
    { (s.failures > 0) ~= (failed and true or false) or failures ~= s.failures, 'failure index' },
    { f.gated and not f.leased, 'gate without run' },
    { #f.lost > 0, 'payload order without payload' },
    { #f.twins > 0, 'payload twin without run' },
    { f.kept > 0 and not f.merged, 'payloads without merged job' },
    { f.merged and f.kept == 0, 'merged job without payload' },
    -- Content that arrived during an attempt is gated: without a gate, its payloads would be missed when it ends.
    { run and f.came > 0 and not f.gated and not left_some(s.taken), 'payloads behind run without gate' },
    { run and f.came == 0 and f.gated, 'gate without payload' },
  }
end

local function leave_places(id)
  leave_due(redis.call('HGET', BODY, id) or '', id)
  redis.call('ZREM', LEASE, id)
  for class = 1, #DUE do
    redis.call('ZREM', DUE[class], id)
  end
end

local function restore_failures(id, s)
  forget_failures(id)
  if s.failures > 0 then
    redis.call('ZADD', FAILED, score_at(s.failed_at), id)
    redis.call('ZADD', FAILURES, s.failures, id)
  end
end

local function restore_held(f)
  if f.merged and f.came == 0 then
    redis.call('HDEL', GATE, f.id)
  elseif f.merged and not f.gated and not left_some(f.s.taken) then
    redis.call('HSET', GATE, f.id, pack_gate(tonumber(score_at(now_ms)), f.body))
  end
end

local function restore_waiting(f)
  local id, s = f.id, f.s
  if s.token then
    s.token, s.worker, s.taken, s.permit = nil, nil, nil, nil
    put_state(id, s)
  end
  if not is_in_place(f) then
    leave_places(id)
    put_due(f.body, score_at(now_ms), id)
  end
  if f.merged then
    redis.call('HDEL', GATE, id)
  elseif f.gated then
    -- As at the end of every attempt that does not return: the newer content replaces it. No completion is written
    -- for the older content, so a caller that waits for it sends it again.
    leave_places(id)
    open_gate(id, f.gated)
  end
end

-- Store an id as what is left of it: its body decides whether it is live, its lease and token whether it runs.
local function restore(f)
  local id = f.id
  for _, member in ipairs(f.lost) do
    redis.call('ZREM', ORDER, member)
  end
  for _, twin in ipairs(f.twins) do
    add_payload(id, twin[1], twin[2], '0', '')
    drop_payload(id, twin[1], '1', twin[2])
  end
  if not f.merged then
    drop_payloads(id, '')
  end
  if not f.body or f.merged and f.kept == 0 then
    leave_places(id)
    forget_failures(id)
    for _, key in ipairs({ STATE, GATE, BODY }) do
      redis.call('HDEL', key, id)
    end
    return
  end
  restore_failures(id, f.s)
  if f.held then
    restore_held(f)
  else
    restore_waiting(f)
  end
end

local function examine(id)
  local facts, found_before = facts_of(id), #findings
  for _, one in ipairs(violations_of(facts)) do
    if one[1] then
      report(one[2], id)
    end
  end
  if repair and #findings > found_before then
    restore(facts)
  end
end

local function examine_grave(grave)
  local record = redis.call('HGET', GRAVE, grave)
  local by_time, by_id = redis.call('ZSCORE', MORGUE, grave), redis.call('ZSCORE', MORGUE_ID, grave)
  if record and by_time and by_id then
    return
  end
  report(record and 'grave without index' or 'grave without record', grave)
  if repair and record then
    redis.call('ZADD', MORGUE_ID, 0, grave)
    redis.call('ZADD', MORGUE, 'NX', score_at(now_ms), grave)
  elseif repair then
    redis.call('ZREM', MORGUE, grave)
    redis.call('ZREM', MORGUE_ID, grave)
  end
end

-- A payload without an entry in ORDER is never handed out. A live job gets the entry back; without a job the payload is
-- deleted.
local function examine_payload(field)
  local id, digest, slot = string.sub(field, 1, -19), string.sub(field, -17, -2), string.sub(field, -1)
  local value = redis.call('HGET', PAYLOAD, field)
  local member = value and member_of(id, value, digest, slot)
  if not value or redis.call('ZSCORE', ORDER, member) then
    return
  end
  report('payload without order', id)
  local body = repair and redis.call('HGET', BODY, id)
  if body and is_merged(body) then
    redis.call('ZADD', ORDER, 0, member)
  elseif repair then
    redis.call('HDEL', PAYLOAD, field)
  end
end

-- A place in a lane whose job is not there delays the jobs behind it.
local function examine_lane(member)
  local lane, _, id = lanes.parts(member)
  local body, due = redis.call('HGET', BODY, id), redis.call('ZSCORE', DUE[LANE], id)
  if not body or not due or lanes.member(body, due, id) ~= member then
    report('place in a lane without job', id)
    if repair then
      redis.call('ZREM', LANE_ORDER, member)
      lanes.set_turn(lane, 0)
    end
  end
end

local function examine_turn(lane)
  local due, score = lanes.first_due(lane), redis.call('ZSCORE', TURNS, lane)
  if score and (not due or lanes.turn_of(score) < math.min(math.floor(due / 1000), lanes.LAST_TURN)) then
    report('turn of a lane before its first job', lane)
    if repair then
      lanes.set_turn(lane, 0)
    end
  end
end

local check = {
  id = examine, grave = examine_grave, payload = examine_payload, lane = examine_lane, turn = examine_turn,
}
for _, subject in ipairs(cmsgpack.unpack(ARGV[5])) do
  check[ARGV[4]](subject)
end
if repair and #findings > 0 then
  write_marks()
  keep_clock()
end
return findings
