#!lua flags=allow-oom
-- A worker says that it lives. KEYS 1 registry of workers (hash), 2 registry of queues (hash).
-- ARGV    1 name; 2 what it says of itself, the server's time is put in front
-- Returns now ms, and how often the registry of queues was changed so far: '<ms> <number>'.
-- Events  none
local workers, queues = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now_ms = string.format('%.0f', math.floor((time[1] * 1000000 + time[2]) / 1000))
redis.call('HSET', workers, ARGV[1], now_ms .. ':' .. ARGV[2])
return now_ms .. ' ' .. (redis.call('HGET', queues, '') or '0')
