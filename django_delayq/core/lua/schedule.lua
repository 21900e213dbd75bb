#!lua
-- Puts jobs in: one entry for each, decided by its own policies.
-- ARGV    3 entries one after another: '<B conflict><B due policy><B score policy><B marks><d ms><Bc0 id><Bc0 task>
--           <I4c0 body without its task>'
--           conflict 0 merge 1 replace 2 ignore 3 error; due policy 0 keep 1 replace 2 earliest 3 latest
--           4 inherit;
--           score policy 0 min 1 max 2 first 3 last; marks 1 = ms is a delay, 2 = keep the retry state,
--           4 = merged: '<c16 digest><B payload policy><I4 max payloads><I4c0 payload record without arrival>' follows,
--           payload policy 0 all 1 last 2 first; 8 = the payload's score is the time now, in Unix seconds
--         4 '1' = one `bulk` event for the chunk; 5 a tick in ms, or '': for a single entry that must be put in once
--         for each tick; 6 ms on this clock, or '': a call that comes later changes nothing
-- Returns one letter for each: created merged replaced ignored gated, e(xists), t(aken by another task), f(ull: the
--         shard, or a merged job with its payloads),
--         p(aused), v (moved: a closing shard takes no new ids), d (this tick or a later one was there before),
--         k(nown: this very durable generation, or payload, was put in before), l(ate: the call came too late).
-- Events  bulk
-- include keys clock begin sweep window settled body tasks due wake
local MARK_DELAY, MARK_KEEP_RETRIES, MARK_MERGED, MARK_SCORE_IS_NOW = 1, 2, 4, 8
local MERGE, REPLACE, IGNORE, ERROR = 0, 1, 2, 3
local KEEP, EARLIEST, LATEST, INHERIT = 0, 2, 3, 4
local ALL, LAST = 0, 1

local seen = replay()
if seen then
  return seen
end

local function read_entry(frame, at)
  local e = {}
  e.conflict, e.due_policy, e.score_policy, e.marks, e.ms, e.id, e.task, e.body, at =
    struct.unpack('<BBBBdBc0Bc0I4c0', frame, at)
  if e.marks >= MARK_MERGED then
    e.digest, e.payload_policy, e.max_payloads, e.record, at = struct.unpack('<c16BI4I4c0', frame, at)
  end
  e.key = e.record and string.sub(e.record, 9, 24) or string.sub(e.body, 2, 17)
  return e, at
end

local function due_of(e)
  return tonumber(score_at(e.marks % 2 == MARK_DELAY and now_ms + e.ms or e.ms))
end

-- Everything beyond a fresh plain job. Made only when it is met: making its functions would take longer than all the
-- rest of a schedule() of one job.
local function make_policies()
  -- include state bytes payload gate durable known

  -- The record as PAYLOAD has it, with its arrival behind the sortable score.
  local function record_of(e)
    local arrival = struct.pack('>d', seq)
    if e.marks < MARK_SCORE_IS_NOW then
      return string.sub(e.record, 1, 8) .. arrival .. string.sub(e.record, 9)
    end
    local score, number = string.format('%.6f', now_us / 1000000), struct.pack('>d', now_us / 1000000)
    -- Positive, so turning the sign bit makes it sortable (frames.sortable).
    return string.char(string.byte(number) + 128) .. string.sub(number, 2) .. arrival .. string.sub(e.record, 9, 24)
      .. struct.pack('<Bc0', #score, score) .. string.sub(e.record, 26)
  end

  local function put_payload_of(e, taken)
    if e.record then
      add_payload(e.id, e.digest, record_of(e), tostring(e.score_policy), taken)
    end
  end

  -- The `n` payloads that the job's policy gives up first. Those in `others` are passed over.
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

  -- One more payload for those that wait, of which a limited number is kept; those of a run that goes on do not count.
  -- Answers f(ull) or i(gnored) when it does not come in: then nothing has changed.
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
      return 'f'
    end
    unite_payloads(e.id, e.digest, slot, record, policy, twin)
    drop_members(leaving)
  end

  -- The payload beside those that wait, or in their place.
  local function take_in(e, taken)
    if e.conflict == MERGE then
      return merge_payload(e, taken)
    end
    drop_gated_payloads(e.id, taken)
    put_payload_of(e, taken)
  end

  -- A correction does not wait out the back-off of what it corrects, nor does it hammer: 1 s for each failure, at
  -- most 60.
  local function due_after_failure(state, current, due)
    local soonest = (state.failed_at + math.min(state.failures, 60) * 1000) * 1000
    return math.max(math.min(current, due), math.min(current, soonest))
  end

  local function choose_due(e, current, due, state)
    if e.due_policy == KEEP and state and state.failures > 0 then
      return due_after_failure(state, current, due)
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
    local due, body = due_of(e), e.body
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

  local function merge_waiting(e, old, current, due)
    local body = with_class_of(old, e.body)
    if body ~= old then
      redis.call('HSET', BODY, e.id, body)
    end
    if body ~= old or due ~= current then
      put_due(body, text(due), e.id)
    end
    return 'm'
  end

  local function replace_waiting(e, old, due)
    mark_replaced(old, e.body)
    if e.marks % (2 * MARK_KEEP_RETRIES) < MARK_KEEP_RETRIES then
      redis.call('HDEL', STATE, e.id)
      forget_failures(e.id)
    end
    redis.call('HSET', BODY, e.id, e.body)
    put_due(e.body, text(due), e.id)
    return 'r'
  end

  local function change_waiting(e, old)
    local class = class_of(old)
    local current = tonumber(redis.call('ZSCORE', DUE[class], e.id))
    local packed = redis.call('HGET', STATE, e.id)
    local due = choose_due(e, current, due_of(e), packed and read_state(packed))
    local refused = e.record and take_in(e, '')
    if refused then
      return refused
    end
    if class_of(e.body) ~= class then
      redis.call('ZREM', DUE[class], e.id)
    end
    return e.conflict == MERGE and merge_waiting(e, old, current, due) or replace_waiting(e, old, due)
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

  local function is_known_entry(e, old)
    return is_known(e.id, e.key, e.digest or '', old)
  end

  return put_payload_of, change_live, is_known_entry, expect_durable_payloads
end

local put_payload_of, change_live, is_known_entry, expect_durable_payloads
local is_ruled = paused_in or max_length > 0

-- Why nothing new may come in, or nil.
local function refusal()
  if paused_in then
    return 'p'
  elseif max_length > 0 and redis.call('HLEN', BODY) >= max_length then
    return 'f'
  end
end

local function schedule(e)
  local old = redis.call('HGET', BODY, e.id)
  if (old or e.record or is_durable(e.key)) and not change_live then
    put_payload_of, change_live, is_known_entry, expect_durable_payloads = make_policies()
  end
  if is_durable(e.key) and is_known_entry(e, old) then
    return 'k' -- also in a closing shard, where such a job may lie in the morgue
  elseif closing and not old then
    return 'v' -- before anything is written: this shard may be a tombstone
  end
  e.body = string.sub(e.body, 1, 1) .. task_code(e.task) .. string.sub(e.body, 2)
  if e.record and is_durable(e.key) then
    expect_durable_payloads()
  end
  if old then
    return paused_in and 'p' or change_live(e, old)
  end
  local refused = is_ruled and refusal()
  if refused then
    return refused
  end
  local due = score_at(e.marks % 2 == MARK_DELAY and now_ms + e.ms or e.ms)
  if e.record then
    put_payload_of(e, '')
  end
  redis.call('HSET', BODY, e.id, e.body)
  put_due(e.body, due, e.id)
  return 'c'
end

-- The tick is remembered with the job, in one move: of all who fire it one puts it in.
local tick, not_after = tonumber(ARGV[5]), tonumber(ARGV[6])
local is_late = not_after and now_ms > not_after

local function was_ticked(id)
  local last = tonumber(redis.call('HGET', META, 'tick:' .. id))
  return last and last >= tick
end

local function outcome_of(e)
  if is_late then
    return 'l'
  end
  return tick and was_ticked(e.id) and 'd' or schedule(e)
end

local before = head()
local frame, outcomes, at, n, created, refused, idle, fired = ARGV[3], {}, 1, 0, 0, 0, 0, 0
while at <= #frame do
  local e
  e, at = read_entry(frame, at)
  n = n + 1
  outcomes[n] = outcome_of(e)
  if outcomes[n] == 'c' then
    created = created + 1
  elseif string.find('vkl', outcomes[n]) then
    idle = idle + 1
  elseif outcomes[n] == 'd' then
    fired = fired + 1 -- somebody else was faster, which is no refusal
  elseif string.find('fp', outcomes[n]) then
    refused = refused + 1
  end
  if tick and refused + idle + fired == 0 then
    redis.call('HSET', META, 'tick:' .. e.id, text(tick))
  end
end
if idle == n then
  -- Not remembered, since nothing was changed. An old shard is asked before each new id goes elsewhere, and its v can only
  -- be the same again; what is known stays known while its sender may send it again, and what is late does not get earlier.
  return table.concat(outcomes)
end
count('created', created)
count('changed', n - created - refused - idle - fired)
count('refused', refused)
if ARGV[4] == '1' then
  redis.call('XADD', EVENT, 'MAXLEN', '~', event_cap, '*', 'outcome', 'bulk', 'jobs', n, 'created', created)
end
wake_if_earlier(before)
write_marks()
local reply = table.concat(outcomes)
remember(reply)
return reply
