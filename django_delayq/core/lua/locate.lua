#!lua flags=no-writes
-- Find the job of an id that a caller means.
-- ARGV    3 id; 4 keys and 5 digest that name it (lib/generation)
-- Returns live (it waits or runs), gated (behind the attempt of another one), '' (it is not live any more) or v (no
--         live job of the id in a closed shard).
-- Events  none
-- include keys clock begin settled body state bytes payload gate generation
local id = ARGV[3]
local body = redis.call('HGET', BODY, id)
if not body then
  return closing and 'v' or ''
end
return place_of(id, body, ARGV[4], ARGV[5]) or ''
