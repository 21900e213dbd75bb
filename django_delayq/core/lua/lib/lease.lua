-- Return true if the lease is over; during a reaper hold none is.
local function has_run_out(id)
  local deadline = tonumber(redis.call('ZSCORE', LEASE, id))
  return deadline and deadline <= now_ms and now_ms >= hold_ms
end
