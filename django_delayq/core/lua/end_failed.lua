#!lua flags=allow-oom
-- End waiting jobs that have failed, each as a whole: content that arrived for it up to this moment goes with it, and
-- later content makes another job.
-- ARGV    3 entries (lib/each); 4 'deleted' = delete them, 'killed' = move them into the morgue
-- Returns one letter for each: d(one), r (it is reserved now) or n(o such failed job).
-- Events  bulk
-- include keys clock begin window marks body state due wake payload unite gate event grave generation each remove
local seen = replay()
if seen then
  return seen
end
local verb, done = ARGV[4], 0

-- The payloads of a job are spread over several morgue records, none with more than one attempt would have taken. The
-- first record has the job's own key, each other one that of its first payload. A piece is dropped after its records
-- are written.
local function bury_payloads(id, body, s, e)
  local buried = 0
  drop_payloads(id, function(fields)
    local at = 0
    while at < #fields do
      local records, seen = read_payloads({ unpack(fields, at + 1) }, TAKE_BYTES)
      local own = body
      if buried > 0 and records[1] then
        own = with_key(body, key_of_payload(records[1]))
      end
      bury(id, own, s, e, records)
      at, buried = at + seen, buried + seen
    end
  end)
  return buried
end

local function kill(id, body, due)
  local s, buried = read_state(redis.call('HGET', STATE, id)), 0
  s.due = due
  local e = { outcome = 'buried', reason = 'buried by an operator', error_class = '', error = s.error }
  if is_merged(body) then
    buried = bury_payloads(id, body, s, e)
  else
    bury(id, body, s, e)
  end
  leave_due(body, id)
  end_run(id)
  return buried
end

local function end_failed(id, keys, digest)
  local body = redis.call('HGET', BODY, id)
  if not body or not redis.call('ZSCORE', FAILED, id) or place_of(id, body, keys, digest) ~= 'live' then
    return 'n'
  end
  local due = tonumber(redis.call('ZSCORE', DUE[class_of(body)], id))
  if not due then
    return 'r'
  end
  done = done + 1
  return 'd', (verb == 'killed' and kill(id, body, due) or delete_waiting(id, body))
end

local letters = for_each(end_failed)
emit_bulk_event(verb, done)
return answer(letters)
