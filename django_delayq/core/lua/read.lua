#!lua flags=no-writes
-- Read jobs of the shard: those in a range of one of its indexes, or those that the caller names; all that is stored of
-- them, or their names only. Nothing is changed.
-- ARGV    3 a map, packed by cmsgpack. Which jobs: members = names of jobs (ids; `buried`: names of morgue records), or
--         index = position of a sorted set in KEYS, limit, and if wanted: after = {score, member} behind which the range
--         begins (the entry may be gone); low and high, each a maximum as ZCOUNT takes it: entries up to `low` are
--         before the range, entries up to `high` are not behind it; by_member = these are members as ZLEXCOUNT takes
--         them (all scores are equal); reverse = the last ones of the range; skip = number of entries to pass over;
--         expired = only leases that ran out (none during a reaper hold); buried_at = scores are those of the morgue.
--         What of them: names = members and scores only; place = w or r: all jobs of the index wait or are reserved, and
--         it has their moments; most = maximum of bytes of arguments of a job, of a record also of the data of
--         its payloads, more are left out; counts = of payloads of a record only their number.
-- Returns packed by cmsgpack: with `names` {more, {member, score, ...}}; else {more, number of members that were looked
--         at (fewer than wanted when the first ones are large), now ms, tasks: code -> name, columns}. The
--         columns are members, bodies (of the morgue: records), moments (due us, of reserved jobs deadline ms, of the
--         morgue the score), places (w, r or empty), states, gates, numbers of payloads, bytes left out of the body,
--         and of the gated one; false = empty, or 0, for all jobs. A job that is not there is left out if its name was
--         given, else its body is false.
-- Events  none
-- include keys clock begin marks payload body
local REPLY_BYTES, READ_BYTES = 1024 * 1024, 4 * 1024 * 1024
-- Number of jobs that are read in one piece; one at a time once they turned out to be large, after the first two.
local PIECE, LARGE = 25, 16 * 1024
local want = cmsgpack.unpack(ARGV[3])
local buried, most = want.buried, want.most

-- Return how many entries of a sorted set, in the order of (score, member), are before this place, or up to it if it is
-- `included`; its member may have been removed.
local function rank_of(key, score, member, included)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member_at = redis.call('ZRANGE', key, middle, middle)[1]
    if comes_before(member_at, member) or (included and member_at == member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Return how many entries are up to a bound, as ZCOUNT takes it (ZLEXCOUNT when it is one of members: all scores are
-- equal); `otherwise` without one ('' or nothing).
local function rank_of_bound(key, bound, otherwise, of_members)
  if (bound or '') == '' then
    return otherwise
  elseif of_members then
    return redis.call('ZLEXCOUNT', key, '-', bound)
  end
  return redis.call('ZCOUNT', key, '-inf', bound)
end

-- Return the wanted members and their scores, one after another, and true if there are more.
local function entries_in_range()
  local key, high = KEYS[want.index], want.high
  if want.expired then
    if now_ms < hold_ms then
      return {}, false
    end
    high = text(now_ms)
  end
  -- Ranks, counted from 0: from `first` up to `stop`, exclusive.
  local first = rank_of_bound(key, want.low, 0, want.by_member) + (want.skip or 0)
  local stop = rank_of_bound(key, high, nil, want.by_member) or redis.call('ZCARD', key)
  local after = want.after
  if after and want.reverse then
    stop = math.min(stop, rank_of(key, after[1], after[2]))
  elseif after then
    first = math.max(first, rank_of(key, after[1], after[2], true))
  end
  if first >= stop then
    return {}, false
  end
  local from = want.reverse and math.max(first, stop - want.limit) or first
  local behind = want.reverse and stop or math.min(first + want.limit, stop)
  return redis.call('ZRANGE', key, from, behind - 1, 'WITHSCORES'), from > first or behind < stop
end

local members, scores, more = want.members, {}, false
if not members then
  local entries
  entries, more = entries_in_range()
  for i = 1, want.buried_at and #entries or 0, 2 do
    entries[i + 1] = redis.call('ZSCORE', MORGUE, entries[i]) or ''
  end
  if want.names then
    return cmsgpack.pack({ more, entries })
  end
  members = {}
  for i = 1, #entries / 2 do
    members[i], scores[i] = entries[2 * i - 1], entries[2 * i]
  end
end

-- Most shards have no states, gates and payloads at all.
local has_states = not buried and redis.call('EXISTS', STATE) == 1
local has_gates = not buried and redis.call('EXISTS', GATE) == 1
local has_order = not buried and redis.call('EXISTS', ORDER) == 1
local is_looked_up = not buried and not want.place
local names, bodies, moments, places, states, gates, counts = {}, {}, {}, {}, {}, {}, {}
local left_out, gated_left_out = {}, {}
local n, size, read = 0, 0, 0

-- Return where the arguments of a body begin (core/records/frames.py). In one that cannot be read they are everything
-- behind its key.
local function arguments_at(body)
  local flags, first = flags_of(body), 20
  if math.floor(flags / 32) == 1 and math.floor(flags / 16) % 2 == 1 and #body >= 21 then
    local options = struct.unpack('<I2', body, 20)
    first = 22 + options
  end
  return first <= #body + 1 and first or 20
end

-- Return the body, or the part that is not left out, and how many bytes were left out. `most` nil = none are.
local function cut(body, most)
  if not most or #body <= most then
    return body, 0
  end
  local first = arguments_at(body)
  local size = #body - first + 1
  if size <= most then
    return body, 0
  end
  return string.sub(body, 1, first - 1), size
end

-- Return where a live job is, and its due time or its deadline.
local function place_of_live(id, body)
  local deadline = redis.call('ZSCORE', LEASE, id)
  if deadline then
    return 'r', deadline
  end
  local due = redis.call('ZSCORE', DUE[class_of(body)], id)
  return due and 'w' or '', due or '-1'
end

local function add(id, score, body, state, gate)
  n = n + 1
  names[n], moments[n] = id, score
  if is_looked_up then
    places[n], moments[n] = place_of_live(id, body or '')
  end
  read = read + #(body or '') + #(gate or '')
  name_task_of(body or '')
  if has_order then
    counts[n] = body and is_merged(body) and redis.call('ZLEXCOUNT', ORDER, range_of(id)) or 0
  end
  if most then
    bodies[n], left_out[n] = cut(body or '', most)
  end
  if not most or not body then
    bodies[n] = body
  end
  if has_states then
    states[n] = state or ''
  end
  if has_gates then
    gates[n], gated_left_out[n] = gate or '', 0
    if gate and #gate > 8 then
      name_task_of(string.sub(gate, 9))
      local gated, without = cut(string.sub(gate, 9), most)
      gates[n], gated_left_out[n] = string.sub(gate, 1, 8) .. gated, without
    end
  end
  size = size + #(bodies[n] or '') + #(state or '') + #(gates[n] or '')
end

-- Return how many bytes the data of payloads has (lib/payload).
local function size_of(payloads)
  local total = 0
  for _, payload in ipairs(payloads) do
    total = total + #payload - 33 - (string.byte(payload, 33) or 0)
  end
  return total
end

-- Return a record without the arguments of its body, or with the number of its payloads in their place, where they are
-- too large, and how many bytes were left out.
local function cut_record(record)
  local without
  record.body, without = cut(record.body, most)
  local data = record.payloads and most and not want.counts and size_of(record.payloads) or 0
  if record.payloads and (want.counts or (most and data > most)) then
    record.payloads, without = #record.payloads, without + data
  end
  return cmsgpack.pack(record), without
end

-- A record that cannot be read stays as it is.
local function add_record(name, score, record)
  n = n + 1
  names[n], moments[n], bodies[n], left_out[n] = name, score or '0', record, 0
  local is_read, found = pcall(cmsgpack.unpack, record or '')
  if is_read and type(found) == 'table' and type(found.body) == 'string' then
    name_task_of(found.body)
    if want.counts or (most and #record > most) then
      local is_cut, rest, without = pcall(cut_record, found)
      if is_cut then
        bodies[n], left_out[n] = rest, without
      end
    end
  end
  read = read + #(record or '')
  size = size + #(bodies[n] or '')
end

-- Adds what is stored under these members, first to last.
local function take(first, last)
  local function stored(key, is_there)
    return is_there and redis.call('HMGET', key, unpack(members, first, last)) or {}
  end
  local values = stored(buried and GRAVE or BODY, true)
  local with_state, with_gate = stored(STATE, has_states), stored(GATE, has_gates)
  for i = 1, #values do
    local id, score = members[first + i - 1], scores[first + i - 1]
    if values[i] or not want.members then
      if buried then
        add_record(id, score, values[i])
      else
        add(id, score, values[i], with_state[i], with_gate[i])
      end
    end
  end
end

local looked = 0
while looked < #members and size < REPLY_BYTES and read < READ_BYTES do
  local step = looked == 0 and 2 or read > looked * LARGE and 1 or PIECE
  local last = math.min(looked + step, #members)
  take(looked + 1, last)
  looked = last
end
return cmsgpack.pack({ more or looked < #members, looked, now_ms, tasks, { names, bodies, moments, is_looked_up and places,
  has_states and states, has_gates and gates, has_order and counts, (most or buried) and left_out or false,
  has_gates and gated_left_out } })
