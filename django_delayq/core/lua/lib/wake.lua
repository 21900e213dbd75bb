-- Wake-up: at most one token per shard, the shard's number; losing it costs a safety check, never a job.

local function wake()
  if channel ~= '' then
    redis.call('PUBLISH', channel, shard)
  elseif not redis.call('LPOS', WAKE, shard) then
    redis.call('RPUSH', WAKE, shard)
  end
end

-- Due work remains, so another consumer should be woken. A channel wakes all of them, so not at every reserve.
local function wake_next()
  local RELAY_MS = 20
  if channel ~= '' then
    if now_ms - (tonumber(redis.call('HGET', META, 'relayed')) or 0) < RELAY_MS then
      return
    end
    redis.call('HSET', META, 'relayed', text(now_ms))
  end
  wake()
end

local function drop_wake()
  if channel == '' then
    redis.call('LREM', WAKE, 0, shard)
  end
end

local function wake_if_earlier(before)
  local after = head()
  if has_quarantined or (after and (not before or after < before)) then
    wake()
  end
end
