#!lua
-- Store a sample of the depth of each of some queues, and remove those of more than a day ago. A queue that has a later
-- one keeps it, so a retried call changes nothing.
-- KEYS    one for each queue (stream)
-- ARGV    1 moment of the samples, Unix ms; 2 ms for which samples are kept, and after which a series without a new one expires; then
--         a sample for each key
-- Returns nothing
-- Events  none
-- include text
for place, key in ipairs(KEYS) do
  local oldest_ms = text(ARGV[1] - ARGV[2] + 1)
  local added = redis.pcall('XADD', key, 'MINID', oldest_ms, ARGV[1] .. '-0', 'sample', ARGV[place + 2])
  if type(added) == 'string' then
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
