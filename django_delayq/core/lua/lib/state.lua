-- The mutable state of an id (job.STATE in Python); a fresh waiting job has none.
-- token, due score, failures, reserves, crashes, flags, failed at (ms), worker, what payloads its run has (lib/payload),
-- error.
local STATE_FORMAT = '<ddI2I2I2BdBc0I2c0'
local STATE_SHORTEST = 34
local STARTED, SUSPECT, STOPPING = 1, 2, 4

local function read_state(packed)
  local s = {}
  if not packed or #packed < STATE_SHORTEST then
    s.token, s.due, s.failures, s.reserves, s.crashes, s.flags, s.failed_at = 0, 0, 0, 0, 0, 0, 0
    s.worker, s.taken, s.error = '', '', ''
    return s
  end
  local at
  s.token, s.due, s.failures, s.reserves, s.crashes, s.flags, s.failed_at, s.worker, s.taken, at =
    struct.unpack(STATE_FORMAT, packed)
  s.error = string.sub(packed, at)
  return s
end

local function pack_state(s)
  return struct.pack(STATE_FORMAT, s.token, s.due, s.failures, s.reserves, s.crashes, s.flags, s.failed_at,
    #s.worker, s.worker, #s.taken, s.taken) .. s.error
end

local function has_flag(s, flag)
  return math.floor(s.flags / flag) % 2 == 1
end

local function set_flag(s, flag)
  if not has_flag(s, flag) then
    s.flags = s.flags + flag
  end
end

local function clear_flag(s, flag)
  if has_flag(s, flag) then
    s.flags = s.flags - flag
  end
end
