-- The request window: a call that is retried after a lost reply gets the first reply again and changes nothing, except
-- the leases of the jobs that it handed out (reserve_again).
-- exports WINDOW_MS replay sweep remember
WINDOW_MS = 120000
local WINDOW_LENGTH = 100000

function replay()
  return redis.call('HGET', REPLY, request)
end

-- Deletes up to `most` of the oldest. Twice as many as arrived since the last sweep keep the window short without ever
-- taking long.
function sweep(length, most)
  for _ = 1, most do
    local oldest = redis.call('LINDEX', WINDOW, 0)
    if not oldest or (length <= WINDOW_LENGTH and now_ms - struct.unpack('<d', oldest, #oldest - 7) < WINDOW_MS) then
      return
    end
    redis.call('LPOP', WINDOW)
    redis.call('HDEL', REPLY, string.sub(oldest, 1, #oldest - 8))
    length = length - 1
  end
end

function remember(reply)
  if ended then
    return
  end
  -- The window first: what it lists is deleted in time, even if the reply was never written.
  local length = redis.call('RPUSH', WINDOW, request .. struct.pack('<d', now_ms))
  redis.call('HSET', REPLY, request, reply)
  if length % SWEEP_EVERY == 0 or seq % SWEEP_EVERY == 0 then
    sweep(length, 2 * SWEEP_EVERY)
  end
  keep_clock()
end
