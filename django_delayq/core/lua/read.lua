#!lua flags=no-writes
-- Read jobs of the shard: those in a range of one of its indexes, or those that the caller names; all that is stored of
-- them, or their names only. Nothing is changed.
-- ARGV    3 a map, packed by cmsgpack. Which jobs: members = names of jobs (ids; `buried`: names of morgue records), or
--         index = position of a sorted set in KEYS, limit, and if wanted: after = {score, member} behind which the range
--         begins (the entry may be gone); low and high, each a maximum as ZCOUNT takes it: entries up to `low` are
--         before the range, entries up to `high` are not behind it; by_member = these are members as ZLEXCOUNT takes
--         them (all scores are equal); reverse = the last ones of the range; skip = number of entries to pass over;
--         expired = only leases that ran out (none during a reaper hold); buried_at = scores are those of the morgue.
--         What of them: names = members and scores only; waiting = all jobs of the index wait, and it has their moments;
--         most = maximum of bytes of arguments of a job, of a record also of the data of its payloads, more are left out.
-- Returns packed by cmsgpack: with `names` {more, {member, score, ...}}; else {more, number of members that were looked
--         at (fewer than wanted when the first ones are large), now ms, tasks: code -> name, members, bodies (of the
--         morgue: records), moments (due us, of reserved jobs deadline ms, of the morgue the score), member -> what else
--         its job has}: place (w, r or empty, but with `waiting`), state, gate, number of its payloads if it is live and
--         merged, bytes left_out of the body, and gated_left_out of the gated one. A job that is not there is left out if
--         its name was given, else its body is empty.
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
  local command, from_start = unpack(want.by_member and { 'ZLEXCOUNT', '-' } or { 'ZCOUNT', '-inf' })
  local first = (want.low and redis.call(command, key, from_start, want.low) or 0) + (want.skip or 0)
  local stop = high and redis.call(command, key, from_start, high) or redis.call('ZCARD', key)
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

-- Most shards have no states and gates at all.
local has_states = not buried and redis.call('EXISTS', STATE) == 1
local has_gates = not buried and redis.call('EXISTS', GATE) == 1
local names, bodies, moments, extras, size, read = {}, {}, {}, {}, 0, 0

-- Return where the arguments of a body begin (core/records/frames.py). In one that cannot be read they are everything
-- behind its key.
local function arguments_at(body)
  local flags, _, first = flags_of(body), group_of(body)
  if math.floor(flags / 32) % 2 == 1 and math.floor(flags / 16) % 2 == 1 and #body > first then
    first = first + 2 + struct.unpack('<I2', body, first)
  end
  return first <= #body + 1 and first or 20
end

-- Return the body, or the part that is not left out, and how many bytes were left out.
local function cut(body)
  local first = most and #body > most and arguments_at(body)
  local size = first and #body - first + 1
  if not first or size <= most then
    return body
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

local function look_closer_at_live(id, score, stored, state, gate)
  local extra, body, gated = { state = state or nil }, stored, nil
  if not want.waiting then
    extra.place, score = place_of_live(id, stored)
  end
  if is_merged(stored) then
    extra.payloads = redis.call('ZLEXCOUNT', ORDER, range_of(id))
  end
  body, extra.left_out = cut(stored)
  if gate then
    gated, extra.gated_left_out = cut(string.sub(gate, 9))
    extra.gate = string.sub(gate, 1, 8) .. gated
    name_task_of(gated)
  end
  return score, body, extra
end

-- Return a record without what is too large: the arguments of its body, and its payloads, of which the number stays. Then
-- also how many bytes were left out.
local function cut_record(record)
  local without, data
  record.body, without = cut(record.body)
  for _, payload in ipairs(record.payloads or {}) do
    data = (data or 0) + #payload - 33 - string.byte(payload, 33) -- lib/payload
  end
  if data and data > most then
    record.payloads, without = #record.payloads, (without or 0) + data
  end
  return cmsgpack.pack(record), without
end

-- A record that cannot be read stays as it is.
local function look_closer_at_record(_, score, stored)
  local is_read, record = pcall(cmsgpack.unpack, stored)
  if is_read and type(record) == 'table' and type(record.body) == 'string' then
    name_task_of(record.body)
    if most and #stored > most then
      local is_cut, rest, without = pcall(cut_record, record)
      if is_cut then
        return score, rest, { left_out = without }
      end
    end
  end
  return score, stored, {}
end

-- Adds what is stored under these members, first to last. Most waiting jobs have nothing but a body.
local function take(first, last)
  local function stored(key)
    return redis.call('HMGET', key, unpack(members, first, last))
  end
  local values, look_closer = stored(buried and GRAVE or BODY), buried and look_closer_at_record or look_closer_at_live
  local states, gates = has_states and stored(STATE) or {}, has_gates and stored(GATE) or {}
  for i = 1, #values do
    if values[i] or not want.members then
      local member, body, score = members[first + i - 1], values[i] or '', scores[first + i - 1] or '0'
      local state, gate, n = states[i], gates[i], #names + 1
      read = read + #body + #(gate or '')
      if not buried then
        name_task_of(body)
      end
      if buried or state or gate or not want.waiting or is_merged(body) or (most and #body > most) then
        local extra
        score, body, extra = look_closer(member, score, body, state, gate)
        extras[member] = next(extra) and extra
        size = size + #(state or '') + #(extra.gate or '')
      end
      names[n], moments[n], bodies[n] = member, score, body
      size = size + #body
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
return cmsgpack.pack({ more or looked < #members, looked, now_ms, tasks, names, bodies, moments, extras })
