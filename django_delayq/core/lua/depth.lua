#!lua
-- Store a sample of the depth of each of some queues in the place of its minute. A retried call changes nothing.
-- KEYS    one for each queue (string: samples of a day, by minute)
-- ARGV    1 place of the sample, bytes; 2 ms after which a series without a new sample expires; then a sample for each key
-- Returns nothing
-- Events  none
for place, key in ipairs(KEYS) do
  redis.call('SETRANGE', key, ARGV[1], ARGV[place + 2])
  redis.call('PEXPIRE', key, ARGV[2])
end
