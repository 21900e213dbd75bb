#!lua flags=allow-oom
-- Close the ledger of a bulk load in one shard: its chunks are forgotten, and none is accepted any more while a sender
-- may still be active. The counts stay with the mark, so that a caller that closes it again, because the first one was
-- interrupted, gets the same reply.
-- KEYS    1 the ledger
-- ARGV    1 ms after which the mark is deleted
-- Returns {letter, count, ...} as they were counted.
-- Events  none
local letters = { 'c', 'm', 'r', 'i', 'g', 'e', 't', 'k' }
local names = { '\0closed' }
for i, letter in ipairs(letters) do
  names[i + 1] = '\0' .. letter
end
local stored = redis.call('HMGET', KEYS[1], unpack(names))
local kept, counts = { '\0closed', '1' }, {}
for i, letter in ipairs(letters) do
  local times = stored[i + 1]
  if times then
    kept[#kept + 1], kept[#kept + 2] = names[i + 1], times
    counts[#counts + 1], counts[#counts + 2] = letter, times
  end
end
if not stored[1] then
  redis.call('UNLINK', KEYS[1])
  redis.call('HSET', KEYS[1], unpack(kept))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return counts
