-- Wake-up: one token per shard at most, the shard's number; losing it costs a safety check, never a job.
local function wake()
  if channel ~= '' then
    redis.call('PUBLISH', channel, shard)
  elseif not redis.call('LPOS', WAKE, shard) then
    redis.call('RPUSH', WAKE, shard)
  end
end

local function drop_wake()
  if channel == '' then
    redis.call('LREM', WAKE, 0, shard)
  end
end

local function wake_if_earlier(before)
  local after = head()
  if after and (not before or after < before) then
    wake()
  end
end
