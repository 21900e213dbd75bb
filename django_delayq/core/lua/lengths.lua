#!lua flags=no-writes
-- Return the lengths of structures that must be equally long, at one moment (a full Redis refuses a transaction).
-- ARGV    none
-- Returns payloads, payloads in order, remembered replies, places in the window, jobs in lanes, these in order,
--         places in KEYS of those that are not empty.
-- Events  none
-- include keys
local stored = {}
for place, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then
    stored[#stored + 1] = place
  end
end

return {
  redis.call('HLEN', PAYLOAD), redis.call('ZCARD', ORDER), redis.call('HLEN', REPLY), redis.call('LLEN', WINDOW),
  redis.call('ZCARD', DUE[LANE]), redis.call('ZCARD', LANE_ORDER), stored,
}
