#!lua flags=allow-oom
-- Hand out the first job that meets some conditions, in the order of classes and due times. At most some jobs are
-- examined: the caller continues behind the last one.
-- ARGV    3 worker; 4 ms that the lease lasts, '' = as usual; 5 '1' = the job counts as started at once, '2' = also,
--         and its own ttr replaces 4; 6 '1' = also before it is due; 7 texts, 'I2c0' each, of which one is in its
--         id, task, options, arguments or payloads (ASCII letters in either case), '' = any; 8 its task, '' = any; 9 the
--         beginning of its id; 10 the maximum of jobs to examine; 11 to 13 class, score and member behind which to begin, each '' = at the beginning
-- Returns {batch (lib/reserve), number of jobs examined, class, score, member}: the last three are where to continue, and
--         missing if no further job waits; for a retried call that handed out a job, {the same batch, 0}.
-- Events  none
-- include keys clock begin sweep window marks body names state due wake bytes payload reserve reserve_one ranks
local PIECE, EXAMINE_BYTES = 25, 4 * 1024 * 1024
ttr_ms, is_started, prefers_own_ttr = tonumber(ARGV[4]) or lease_ms, ARGV[5] ~= '0', ARGV[5] == '2'
local worker, early, task, prefix = ARGV[3], ARGV[6] == '1', ARGV[8], ARGV[9]
local seen = replay()
if seen then
  return { reserve_again(tonumber(seen)), 0 }
end

local texts, at = {}, 1
while at <= #ARGV[7] do
  texts[#texts + 1], at = struct.unpack('<I2c0', ARGV[7], at)
end
for i = 1, #texts do
  texts[i] = string.lower(texts[i])
end
local examined, read = 0, 0

local function has_text(value)
  local lower = string.lower(value)
  for i = 1, #texts do
    if string.find(lower, texts[i], 1, true) then
      return true
    end
  end
  return false
end

local function some_payload_has_text(id)
  local members = redis.call('ZRANGEBYLEX', ORDER, range_of(id))
  for first = 1, #members, PIECE do
    local fields = {}
    for i = first, math.min(first + PIECE - 1, #members) do
      fields[#fields + 1] = field_of_member(members[i])
    end
    for _, record in ipairs(redis.call('HMGET', PAYLOAD, unpack(fields))) do
      read = read + (record and #record or 0)
      if record and has_text(data_of(record)) then
        return true
      end
    end
  end
  return false
end

local function matches(id, body)
  if not body or (task ~= '' and not is_task_of(body, task)) then
    return false
  end
  return #texts == 0 or has_text(id) or has_text(string.sub(body, 20)) or has_text(task_name(task_code_of(body)) or '')
    or (is_merged(body) and some_payload_has_text(id))
end

-- Return the first id among entries of a class that matches.
local function first_match(entries)
  local idents = {}
  for i = 1, #entries, 2 do
    if string.sub(entries[i], 1, #prefix) == prefix then
      idents[#idents + 1] = entries[i]
    end
  end
  local bodies = #idents > 0 and redis.call('HMGET', BODY, unpack(idents)) or {}
  for i = 1, #idents do
    read = read + (bodies[i] and #bodies[i] or 0)
    if matches(idents[i], bodies[i]) then
      return idents[i]
    end
  end
end

-- Return the entries of a class from a rank on that may be handed out.
local function piece_of(class, first)
  local entries = redis.call('ZRANGE', DUE[class], first, first + PIECE - 1, 'WITHSCORES')
  while #entries > 0 and not early and not is_due(tonumber(entries[#entries])) do
    entries[#entries], entries[#entries - 1] = nil, nil
  end
  return entries
end

local function hand_out_match(id)
  local batch, token = reserve_one(id, early, worker)
  if token > 0 then
    remember(text(token))
  end
  return { batch, examined }
end

local limit, class, first = tonumber(ARGV[10]), tonumber(ARGV[11]) or 1, 0
if ARGV[11] ~= '' then
  first = rank_of(DUE[class], ARGV[12], ARGV[13], true)
end
local nothing = frame_of_batch(0, nil, {})
while class <= #DUE and not paused_out do
  local entries = is_used(class) and piece_of(class, first) or {}
  local id = #entries > 0 and first_match(entries)
  examined = examined + #entries / 2
  if id then
    return hand_out_match(id)
  end
  if #entries > 0 and (examined >= limit or read >= EXAMINE_BYTES) then
    return { nothing, examined, class, entries[#entries], entries[#entries - 1] }
  end
  first = first + PIECE
  if #entries < 2 * PIECE then
    class, first = class + 1, 0
  end
end
return { nothing, examined }
