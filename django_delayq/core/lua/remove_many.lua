#!lua flags=allow-oom
-- Remove waiting jobs, each as a whole: content that arrived for it up to this moment is removed too, and later content
-- makes another job. Reserved jobs stay unchanged.
-- ARGV    3 ids one after another, 'Bc0' each; 4 what to do with them: cancel (delete), delete (if they have failed) or
--         kill (move into the morgue, if they have failed); 5 moment, us: only jobs that failed at or before it
-- Returns one letter for each: d(one) or n(ot such a job now). Fewer letters than ids: the first ones had so many
--         payloads that the others have to be sent in another call.
-- Events  bulk
-- include keys clock begin sweep window settled body state due wake bytes payload gate event grave
local MOST_PAYLOADS = 1000

local seen = replay()
if seen then
  return seen
end
local frame, verb, moment = ARGV[3], ARGV[4], tonumber(ARGV[5])
local COUNTERS = { cancel = 'cancelled', delete = 'deleted', kill = 'killed' }

local function is_meant(id)
  if verb == 'cancel' then
    return true
  end
  local failed = tonumber(redis.call('ZSCORE', FAILED, id))
  return failed and failed <= moment
end

-- The payloads of a job are spread over several morgue records, none with more than one attempt would have taken. The
-- first record has the job's own key, each other one that of its first payload. A piece is dropped after its records
-- are written.
local function bury_payloads(id, body, s, e)
  local moved = 0
  drop_payloads(id, function(fields)
    local at = 0
    while at < #fields do
      local records, seen = read_payloads({ unpack(fields, at + 1) }, TAKE_BYTES)
      local own = body
      if moved > 0 and records[1] then
        own = with_key(body, string.sub(records[1], 21, 36))
      end
      dig(id, own, s, e, struct.pack('<I4', #records) .. table.concat(records))
      at, moved = at + seen, moved + seen
    end
  end)
  return moved
end

local function kill(id, body, due)
  local s = read_state(redis.call('HGET', STATE, id))
  s.due = due
  local e = { outcome = 'killed', reason = 'killed', error_class = '', error = s.error }
  if is_merged(body) then
    return bury_payloads(id, body, s, e)
  end
  dig(id, body, s, e, '')
  return 0
end

local function drop(id, body)
  local dropped = 0
  if is_merged(body) then
    drop_payloads(id, function(fields)
      mark_payloads(fields)
      dropped = dropped + #fields
    end)
  else
    mark_end(key_of(body), 'done')
  end
  return dropped
end

-- Return how many payloads were removed with the job, nil when it is not one of the wanted jobs.
local function remove(id)
  local body = redis.call('HGET', BODY, id)
  local class = body and class_of(body)
  local due = class and tonumber(redis.call('ZSCORE', DUE[class], id))
  if not due or not is_meant(id) then
    return nil
  end
  local payloads
  if verb == 'kill' then
    payloads = kill(id, body, due)
    redis.call('ZREM', DUE[class], id)
  else
    redis.call('ZREM', DUE[class], id)
    payloads = drop(id, body)
  end
  end_run(id)
  return payloads
end

local answers, at, gone, done = {}, 1, 0, 0
while at <= #frame and gone < MOST_PAYLOADS do
  local id
  id, at = struct.unpack('<Bc0', frame, at)
  local payloads = remove(id)
  answers[#answers + 1] = payloads and 'd' or 'n'
  if payloads then
    gone, done = gone + payloads, done + 1
  end
end
count(COUNTERS[verb], done)
if done > 0 then
  emit_other({ outcome = 'bulk', jobs = done, created = 0, extra = 'verb:' .. COUNTERS[verb] })
  write_events('')
end
write_marks()
local reply = table.concat(answers)
remember(reply)
return reply
