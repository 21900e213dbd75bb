-- The mutable state of an id (core/records/frames.py), a map; a fresh waiting job has none. What is missing is 0
-- or ''.
-- token (only of a reserved job), due (its due score), failures, reserves, crashes, own_crashes (those that surely were its own), failed_at (ms),
-- worker, taken (the payloads that its attempt holds, lib/payload), error; true or missing: started, unrenewed,
-- stopping, unclear (core/job.py). Of a postponed job, whose attempt could not begin where it was handed out:
-- postponed_at (since when for this reason, ms), postponed_for (the reason), postponed_to (the due score that it got for
-- that); `due` is its previous one, so that the wait counts as lateness.
-- counts of the generation, '<I2I2I2I2' or '': its time was over while it was held, it was released (before the last
-- kick; later ones follow from reserves and failures), buried, kicked. A kick keeps them, and nothing else.
-- exports add_to_counts read_state put_state start_of_fresh_state forget_postponement

-- Return the counts ('' = all are 0) with one of them increased by n.
function add_to_counts(counts, name, n)
  local place = ({ timeouts = 1, releases = 2, buries = 3, kicks = 4 })[name]
  local values = { struct.unpack('<I2I2I2I2', counts == '' and string.rep('\0', 8) or counts) }
  values[place] = math.min(values[place] + n, 65535)
  return struct.pack('<I2I2I2I2', values[1], values[2], values[3], values[4])
end

local MISSING = {
  __index = {
    due = 0, failures = 0, reserves = 0, crashes = 0, own_crashes = 0, failed_at = 0, worker = '', taken = '',
    error = '', counts = '',
  },
}

function read_state(packed)
  return setmetatable(packed and cmsgpack.unpack(packed) or {}, MISSING)
end

function put_state(id, s)
  redis.call('HSET', STATE, id, cmsgpack.pack(s))
end

-- Return the state of a job that is reserved for the first time, but for its due score at the end. For speed, because
-- nearly all are such jobs: a map of four, of which only the last value differs from job to job.
function start_of_fresh_state(token, worker)
  local FOUR = string.char(128 + 4)
  return FOUR .. cmsgpack.pack('token', token, 'worker', worker, 'reserves', 1, 'due')
end

function forget_postponement(s)
  s.postponed_at, s.postponed_for, s.postponed_to = nil, nil, nil
end
