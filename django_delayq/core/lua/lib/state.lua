-- The mutable state of an id (core/records/reserve_frames.py); a fresh waiting job has none.
-- token, due score, failures, reserves, crashes, those of them that surely were its own, flags, failed at (ms), worker,
-- the payloads that its attempt holds (lib/payload), error. Of a postponed job, whose attempt could not begin where it
-- was handed out, '<dBc0d' is in front of the error: since when it is postponed for this reason (ms), the reason, the
-- due score that it got for that. Its due score in front is its previous one, so that the wait counts as lateness.
-- Behind that, if any of them is above 0, lie the counts of the generation, '<I2I2I2I2': its time was over while it was
-- held, it was released (before the last kick; later ones follow from reserves and failures), buried, kicked. A kick
-- keeps them, and nothing else.
-- exports STARTED UNRENEWED STOPPING UNCLEAR POSTPONED has_flag set_flag clear_flag add_to_counts read_state pack_state
STARTED, UNRENEWED, STOPPING, UNCLEAR, POSTPONED = 1, 2, 4, 8, 16

function has_flag(s, flag)
  return math.floor(s.flags / flag) % 2 == 1
end

function set_flag(s, flag)
  if not has_flag(s, flag) then
    s.flags = s.flags + flag
  end
end

function clear_flag(s, flag)
  if has_flag(s, flag) then
    s.flags = s.flags - flag
  end
end

-- Return the counts ('' = all are 0) with one of them increased by n.
function add_to_counts(counts, name, n)
  local place = ({ timeouts = 1, releases = 2, buries = 3, kicks = 4 })[name]
  local values = { struct.unpack('<I2I2I2I2', counts == '' and string.rep('\0', 8) or counts) }
  values[place] = math.min(values[place] + n, 65535)
  return struct.pack('<I2I2I2I2', values[1], values[2], values[3], values[4])
end

local STATE_FORMAT = '<ddI2I2I2I2BdBc0I2c0'
local STATE_SHORTEST = 36
local COUNTED = 32

function read_state(packed)
  local s = { counts = '' }
  if not packed or #packed < STATE_SHORTEST then
    s.token, s.due, s.failures, s.reserves, s.crashes, s.own_crashes, s.flags, s.failed_at = 0, 0, 0, 0, 0, 0, 0, 0
    s.worker, s.taken, s.error = '', '', ''
    return s
  end
  local at
  s.token, s.due, s.failures, s.reserves, s.crashes, s.own_crashes, s.flags, s.failed_at, s.worker, s.taken, at =
    struct.unpack(STATE_FORMAT, packed)
  if has_flag(s, POSTPONED) then
    s.postponed_at, s.postponed_for, s.postponed_to, at = struct.unpack('<dBc0d', packed, at)
  end
  if has_flag(s, COUNTED) then
    s.counts, at = string.sub(packed, at, at + 7), at + 8
  end
  s.error = string.sub(packed, at)
  return s
end

local function pack_postponed(s)
  return struct.pack('<dBc0d', s.postponed_at, #s.postponed_for, s.postponed_for, s.postponed_to)
end

function pack_state(s)
  if s.counts ~= '' then
    set_flag(s, COUNTED)
  end
  return struct.pack(STATE_FORMAT, s.token, s.due, s.failures, s.reserves, s.crashes, s.own_crashes, s.flags, s.failed_at,
    #s.worker, s.worker, #s.taken, s.taken) .. (has_flag(s, POSTPONED) and pack_postponed(s) or '') .. s.counts .. s.error
end
