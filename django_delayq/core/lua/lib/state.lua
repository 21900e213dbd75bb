-- The mutable state of an id (core/records/frames.py): its token (0 = it is not reserved), and behind it a map; a fresh
-- waiting job has none. What is missing is 0 or ''.
-- due (its due score), failures, reserves, crashes, own_crashes (those that surely were its own), failed_at (ms),
-- worker, taken (the payloads that its attempt holds, lib/payload), error, permit (its name, and the limits in which it
-- counts, with \0 between: limit.lua); true or missing: started, unrenewed,
-- stopping, unclear (core/job.py). Of a postponed job, whose attempt could not begin where it was handed out:
-- postponed_at (since when for this reason, ms), postponed_for (the reason), postponed_to (the due score that it got for
-- that); `due` is its previous one, so that the wait counts as lateness.
-- Counts of the generation: timeouts (its time was over while it was held), releases (before the last kick; later ones
-- follow from reserves and failures), buries, kicks. A kick keeps them, and nothing else. No counter exceeds 65535.
-- exports has_token increment pack_state read_state put_state fresh_states forget_postponement

local MISSING = {
  __index = {
    due = 0, failures = 0, reserves = 0, crashes = 0, own_crashes = 0, failed_at = 0, worker = '', taken = '',
    error = '', timeouts = 0, releases = 0, buries = 0, kicks = 0,
  },
}

-- Return a state. One that cannot be read counts as missing: an error would stop the other jobs of the call, too.
function read_state(packed)
  local is_read, token, s = pcall(cmsgpack.unpack, packed or '')
  if not is_read or type(token) ~= 'number' or type(s) ~= 'table' then
    token, s = 0, {}
  end
  s.token = token > 0 and token or nil
  return setmetatable(s, MISSING)
end

function pack_state(s)
  local token = s.token
  s.token = nil
  local packed = cmsgpack.pack(token or 0, s)
  s.token = token
  return packed
end

-- Return true if an id with this state is reserved under a token. For speed, because reading the map takes longer than
-- everything else that an ack does with a job.
local fronts = {}

function has_token(packed, token)
  fronts[token] = fronts[token] or cmsgpack.pack(token)
  return packed and string.sub(packed, 1, #fronts[token]) == fronts[token]
end

function increment(s, name, by)
  s[name] = math.min(s[name] + (by or 1), 65535)
end

function put_state(id, s)
  redis.call('HSET', STATE, id, pack_state(s))
end

-- Return a function of the due score, and the permit if there is one, that returns the state of a job that is reserved for the
-- first time. For speed, because nearly all are such jobs: only the ends of their maps differ.
function fresh_states(token, worker)
  local front, usual = cmsgpack.pack(token), cmsgpack.pack('worker', worker, 'reserves', 1)
  local plain = front .. string.char(128 + 3) .. usual .. cmsgpack.pack('due')
  local limited = front .. string.char(128 + 4) .. usual .. cmsgpack.pack('permit')
  return function(due, permit)
    return permit and limited .. cmsgpack.pack(permit, 'due', due) or plain .. cmsgpack.pack(due)
  end
end

function forget_postponement(s)
  s.postponed_at, s.postponed_for, s.postponed_to = nil, nil, nil
end
