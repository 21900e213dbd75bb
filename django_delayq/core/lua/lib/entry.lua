-- The entries of schedule.lua, maps one after another: id, task, body without the number of its task, ms (when it is due, or
-- with is_delay in how many ms), conflict (0 merge, 2 ignore, 3 error; missing = replace), due_policy (0 keep, 2 earliest,
-- 3 latest, 4 inherit; missing = replace), keeps_retries (the retry state stays). Of merged jobs also digest, score_policy
-- (0 min, 1 max, 2 first, 3 last), payload_policy (0 all, 1 last, 2 first), max_payloads, record (of the payload, without
-- its arrival), score_is_now (its score is the time now, in Unix seconds).
local MERGE, IGNORE, ERROR = 0, 2, 3
local KEEP, EARLIEST, LATEST, INHERIT = 0, 2, 3, 4
local ALL, LAST = 0, 1

-- Return an entry with the key of what it makes: of the payload, or of the job.
local function with_own_key(e)
  e.key = e.record and string.sub(e.record, 9, 24) or string.sub(e.body, 2, 17)
  return e
end

local function read_entries(packed)
  local entries = { cmsgpack.unpack(packed) }
  for _, e in ipairs(entries) do
    with_own_key(e)
  end
  return entries
end

local function due_of(e)
  return score_at(e.is_delay and now_ms + e.ms or e.ms)
end
