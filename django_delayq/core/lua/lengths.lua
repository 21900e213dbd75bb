#!lua flags=no-writes
-- How long the structures are that must be equally long, at one moment (a transaction is refused by a full Redis).
-- ARGV    none
-- Returns payloads, payloads in order, remembered replies, places in the window.
-- Events  none
-- include keys
return { redis.call('HLEN', PAYLOAD), redis.call('ZCARD', ORDER), redis.call('HLEN', REPLY), redis.call('LLEN', WINDOW) }
