#!lua flags=allow-oom
-- Settle held jobs, each by its own verb, and reserve due ones in the same step, for a busy worker.
-- ARGV    3 worker; 4 a map: of acks ids, tokens, events (false = none is wanted) and durable (where the end, or that of a
--         payload, is awaited outside Redis, the job's key, else false; of merged jobs true); the other entries
--         (lib/settle) in others; and if there are both, their places in the reply; 5 how many jobs to reserve, '' = none;
--         6 and 7 the first and the last class that is served (lib/keys); 8 what the worker says of limits (lib/offers); missing = all
--         classes, no limits
-- Returns {one '1' or '0' (the lease was lost) for each entry, the batch (lib/reserve) or ''}. A record is always stored,
--         unless it has the mark `once`.
-- Events  those of the entries; cancelled
-- include keys clock begin window marks body state taken due event
local worker, limit = ARGV[3], tonumber(ARGV[5])
local entries = cmsgpack.unpack(ARGV[4])
local answers, answered, places, is_done, counts = {}, 0, entries.places or {}, {}, {}
-- Entries that need more than a deletion, and the states of their jobs.
local others, states_of_others = {}, {}
-- Jobs whose leases end, those that are deleted, those of them that may have failed, and what their attempts held: each
-- list is removed at once, because every plain job passes here.
local held, deleted, failed, members, fields = {}, {}, {}, {}, {}

local function delete_later(id, has_failed, taken)
  deleted[#deleted + 1] = id
  failed[#failed + 1] = has_failed and id or nil
  if taken ~= '' then
    local its_members, its_fields = in_hand(id, taken)
    for i = 1, #its_members do
      members[#members + 1], fields[#fields + 1] = its_members[i], its_fields[i]
    end
  end
end

local function increment_count(name)
  counts[name] = (counts[name] or 0) + 1
end

-- Answers the next entry; `id`: of the job whose lease ends.
local function answer(is_settled, id)
  answered = answered + 1
  answers[places[answered] or answered] = is_settled and '1' or '0'
  if id then
    is_done[id], held[#held + 1] = true, id
  elseif not is_settled then
    increment_count('late')
  end
end

-- Return states and gated contents of jobs. Most shards have no gated content at all.
local function read_held(ids)
  if #ids == 0 then
    return {}, {}
  end
  return redis.call('HMGET', STATE, unpack(ids)), redis.call('HLEN', GATE) > 0 and redis.call('HMGET', GATE, unpack(ids)) or {}
end

local function make_settling()
  -- include keys payload gate settle
end

local function make_reserving(is_repeated)
  -- include keys payload reserve
  serve(ARGV[6], ARGV[7], ARGV[8])
  return is_repeated and reserve_again or reserve
end

-- Settles acks: a job that nothing follows is deleted, the others are left to settle_others().
local function settle_acks(ids, tokens, events, durable)
  local states, gates = read_held(ids)
  for i, id in ipairs(ids) do
    local state = states[i]
    if is_done[id] or not has_token(state, tokens[i]) then
      answer(false)
    else
      answer(true, id)
      -- A map is searched much faster than it is read. Other text in it may contain these words, which does no harm.
      local taken = string.find(state, 'taken', 1, true) and read_state(state).taken or ''
      if gates[i] or left_some(taken) or (durable[i] and taken ~= '') then
        others[#others + 1] = { verb = 'ack', id = id, event = events[i], durable = durable[i], gated = gates[i] or nil }
        states_of_others[#others] = state
      else
        delete_later(id, string.find(state, 'failures', 1, true), taken)
        mark_end(durable[i] or '', 'done')
        emit(events[i])
      end
    end
  end
  counts.acked = #deleted
end

local function settle_all()
  settle_acks(entries.ids, entries.tokens, entries.events, entries.durable)
  local settle_others = #others + #entries.others > 0 and make_settling()(entries.others)
  remove_all('ZREM', LEASE, held)
  if settle_others then
    settle_others()
  end
  remove_all('HDEL', STATE, deleted)
  remove_all('ZREM', ORDER, members)
  remove_all('HDEL', PAYLOAD, fields)
  remove_all('HDEL', BODY, deleted)
  remove_all('ZREM', FAILED, failed)
  remove_all('ZREM', FAILURES, failed)
  for name, n in pairs(counts) do
    count(name, n)
  end
  write_marks()
  write_events(worker)
  return table.concat(answers)
end

local seen = replay()
if seen then
  local token, reply = string.match(seen, '^(%d+):(.*)$')
  return { reply, limit and make_reserving(true)(tonumber(token)) or '' }
end
local before = not limit and head()
local reply, frame, token = settle_all(), '', 0
if limit then
  frame, token = make_reserving()(limit, worker)
else
  wake_if_earlier(before)
end
if token > 0 or reply ~= '' or not closing then
  -- Requests to an old shard without jobs must not delay its end (retire.lua).
  remember(text(token) .. ':' .. reply)
end
return { reply, frame }
