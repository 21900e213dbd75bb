#!lua flags=allow-oom
-- Store what operators order a worker or a program to do; also in a full Redis.
-- KEYS    1 the orders (hash)
-- ARGV    1 field; 2 value; 3 seconds for which they are kept
-- Returns '1'
-- Events  none
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return '1'
