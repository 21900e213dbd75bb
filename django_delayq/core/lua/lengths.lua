#!lua flags=no-writes
-- Return the lengths of structures that must be equally long, at one moment (a full Redis refuses a transaction).
-- ARGV    none
-- Returns payloads, payloads in order, remembered replies, places in the window, parked jobs, parked jobs in order.
-- Events  none
-- include keys
return {
  redis.call('HLEN', PAYLOAD), redis.call('ZCARD', ORDER), redis.call('HLEN', REPLY), redis.call('LLEN', WINDOW),
  redis.call('ZCARD', DUE[PARKED]), redis.call('ZCARD', PARKED_ORDER),
}
