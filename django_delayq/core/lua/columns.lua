#!lua flags=no-writes
-- Return jobs of one place of the shard, column by column, for readers of whole shards; nothing is changed.
-- ARGV    3 place: w waiting, r reserved, g gated, m morgue; 4 position of the index in KEYS, '' = the jobs of
--         ARGV[12]; 5 limit; 6 cursor score or '' and 7 cursor member: behind these; 8 where the wanted range begins
--         and 9 where it ends, each '' or a bound as page.lua has it; 10 '1' = they are bounds of members; 11 the
--         maximum of bytes of arguments returned for a job (lib/cut), '' = all, 'none' = only members and scores; 12
--         ids, 'Bc0' each, of the wanted jobs (not of the morgue): those that are not in the place are left out.
-- Returns '<BI4I4>' marks (1 there is more behind, 2 with states, 4 with numbers of payloads), how many members were
--         checked (fewer than requested when the first ones are large), n; the names of the tasks; and of the n jobs,
--         one column after another: '<d' score (waiting, gated: due us, reserved: deadline ms, morgue: as the index has
--         it), member, body (morgue: the record, without the payloads behind their number), state, '<I4' number of
--         payloads under the id. Columns of texts have all their '<I4' lengths in front.
-- Events  none
-- include keys clock begin marks bytes payload body names cut grave ranks
local REPLY_BYTES, READ_BYTES = 1024 * 1024, 4 * 1024 * 1024
-- A reply names 255 tasks at most, and one piece of a page may add 25.
local MOST_NAMES = 225
-- Number of jobs that are read in one piece; one at a time once they turned out to be large, after the first two.
local PIECE, LARGE = 25, 16 * 1024
local place, with_bodies = ARGV[3], ARGV[11] ~= 'none'
local most = tonumber(ARGV[11])
-- Most shards only have jobs without a state and without payloads.
local has_states = place ~= 'm' and redis.call('EXISTS', STATE) == 1
local has_order = place ~= 'm' and redis.call('EXISTS', ORDER) == 1

-- Return the members behind the cursor, their scores, and whether there are more.
local function page()
  local key, of_members = KEYS[tonumber(ARGV[4])], ARGV[10] == '1'
  local first = rank_of_bound(key, ARGV[8], 0, of_members)
  local stop = rank_of_bound(key, ARGV[9], nil, of_members) or redis.call('ZCARD', key)
  if ARGV[6] ~= '' then
    first = math.max(first, rank_of(key, ARGV[6], ARGV[7], true))
  end
  local behind = math.min(first + tonumber(ARGV[5]), stop)
  local members, scores = {}, {}
  if first < behind then
    local entries = redis.call('ZRANGE', key, first, behind - 1, 'WITHSCORES')
    for i = 1, #entries / 2 do
      members[i], scores[i] = entries[2 * i - 1], entries[2 * i]
    end
  end
  return members, scores, behind < stop
end

local function listed(frame)
  local ids, at = {}, 1
  while at <= #frame do
    ids[#ids + 1], at = struct.unpack('<Bc0', frame, at)
  end
  return ids
end

-- Packed in pieces: one unpack() can take a few thousand values.
local function numbers(format, values)
  local parts = {}
  for first = 1, #values, AT_ONCE do
    local last = math.min(first + AT_ONCE - 1, #values)
    parts[#parts + 1] = struct.pack('<' .. string.rep(format, last - first + 1), unpack(values, first, last))
  end
  return table.concat(parts)
end

local function texts(values)
  local sizes = {}
  for i = 1, #values do
    sizes[i] = #values[i]
  end
  return numbers('I4', sizes) .. table.concat(values)
end

local members, scores, more
if ARGV[4] == '' then
  members, scores, more = listed(ARGV[12]), {}, false
else
  members, scores, more = page()
end
if not with_bodies then
  return struct.pack('<BI4I4', more and 1 or 0, #members, #members) .. frame_of_names() .. numbers('d', scores)
    .. texts(members)
end

local ids, dues, bodies, states, counts = {}, {}, {}, {}, {}
local n, size, read = 0, 0, 0

local function add(id, score, body, state)
  n = n + 1
  read = read + #body
  name_task_of(body)
  if has_order then
    counts[n] = is_merged(body) and redis.call('ZLEXCOUNT', ORDER, range_of(id)) or 0
  end
  if most then
    body = cut(body, most)
  end
  ids[n], dues[n], bodies[n] = id, score, body
  if has_states then
    states[n] = state or ''
  end
  size = size + #body + #(state or '')
end

-- Return a morgue record with the number of its payloads, but without them. One that cannot be read stays as it is.
local function add_grave(grave, score, record)
  local read_well, body, payloads = pcall(body_of_record, record)
  read = read + #record
  if read_well then
    name_task_of(body)
    record = string.sub(record, 1, #record - math.max(0, #payloads - 4))
  end
  n = n + 1
  ids[n], dues[n], bodies[n] = grave, score, record
  size = size + #record
end

local function due_of(id, body)
  return body and redis.call('ZSCORE', DUE[class_of(body)], id)
end

-- Return what is stored under these members, first to last of those that were found.
local function take(first, last)
  local key = place == 'm' and GRAVE or place == 'g' and GATE or BODY
  local values = redis.call('HMGET', key, unpack(members, first, last))
  local with_state = has_states and redis.call('HMGET', STATE, unpack(members, first, last)) or {}
  for i = 1, #values do
    local id, score, value = members[first + i - 1], scores[first + i - 1], values[i]
    if place == 'm' then
      add_grave(id, score, value or '')
    elseif place == 'g' then
      if value then
        add(id, #value < 8 and math.huge or struct.unpack('<d', value), string.sub(value, 9), with_state[i])
      end
    else
      if not score then
        score = place == 'w' and due_of(id, value) or place == 'r' and redis.call('ZSCORE', LEASE, id)
      end
      if score then
        add(id, score, value or '', with_state[i])
      end
    end
  end
end

local looked = 0
while looked < #members and size < REPLY_BYTES and read < READ_BYTES and #names < MOST_NAMES do
  local step = looked == 0 and 2 or read > looked * LARGE and 1 or PIECE
  local last = math.min(looked + step, #members)
  take(looked + 1, last)
  looked = last
end
local marks = ((more or looked < #members) and 1 or 0) + (has_states and 2 or 0) + (has_order and 4 or 0)
return struct.pack('<BI4I4', marks, looked, n) .. frame_of_names() .. numbers('d', dues) .. texts(ids) .. texts(bodies)
  .. (has_states and texts(states) or '') .. (has_order and numbers('I4', counts) or '')
