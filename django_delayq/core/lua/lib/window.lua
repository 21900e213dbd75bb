-- The request window: a call that is retried after a lost reply gets the first reply again and changes nothing, except
-- the leases of the jobs that it handed out (reserve_again). A reply stays for WINDOW_MS. If there are too many,
-- the oldest stay only for as long as their callers may repeat the calls.
-- exports WINDOW_MS replay window_times sweep remember
WINDOW_MS = 120000
local WINDOW_LENGTH = 100000
-- Number of calls between two sweeps of the old end.
local SWEEP_EVERY = 64

function replay()
  return redis.call('HGET', REPLY, request)
end

-- Return when an entry of the window was made, ms, and for how long its call may be repeated.
function window_times(entry)
  return struct.unpack('<dI4', entry, #entry - 11)
end

-- True if an entry has to stay in a window of this length. A large step back of the clock makes its age unknown.
local function is_needed(entry, length)
  local made_ms, kept_ms = window_times(entry)
  local age_ms = now_ms - made_ms
  return age_ms < WINDOW_MS and (length <= WINDOW_LENGTH or age_ms >= 0 and age_ms < kept_ms)
end

-- Deletes up to `most` of the oldest. Twice as many as arrived since the last sweep keep the window short without ever
-- taking long.
function sweep(length, most)
  for _ = 1, most do
    local oldest = redis.call('LINDEX', WINDOW, 0)
    if not oldest or is_needed(oldest, length) then
      return
    end
    redis.call('LPOP', WINDOW)
    redis.call('HDEL', REPLY, string.sub(oldest, 1, #oldest - 12))
    length = length - 1
  end
end

function remember(reply)
  if ended then
    return
  end
  -- The window first: what it lists is deleted in time, even if the reply was never written.
  local length = redis.call('RPUSH', WINDOW, request .. struct.pack('<dI4', now_ms, repeated_ms))
  redis.call('HSET', REPLY, request, reply)
  if length % SWEEP_EVERY == 0 or seq % SWEEP_EVERY == 0 then
    sweep(length, 2 * SWEEP_EVERY)
  end
  keep_clock()
end
