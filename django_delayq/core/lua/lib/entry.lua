-- The entries of schedule.lua and bulk.lua, and their decoder.
local MARK_DELAY, MARK_KEEP_RETRIES, MARK_MERGED, MARK_SCORE_IS_NOW = 1, 2, 4, 8
local MERGE, REPLACE, IGNORE, ERROR = 0, 1, 2, 3
local KEEP, EARLIEST, LATEST, INHERIT = 0, 2, 3, 4
local ALL, LAST = 0, 1

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
