#!lua flags=allow-oom
-- Set the rules of a shard.
-- ARGV    3 those that follow from the layout of the queue, as a map (lib/begin); '' = close the shard for new ids, for
--         good, and leave the others
-- Returns '1'.
-- Events  none
-- include keys clock begin window body due rules seen
if ended then
  return '1'
end
local changed = ARGV[3] == '' and rules or cmsgpack.unpack(ARGV[3])
if closing or changed.closing or ARGV[3] == '' then
  changed.closing = true
  redis.call('HSETNX', META, 'closed', text(now_us))
end
if changed.max_length ~= rules.max_length then
  redis.call('HDEL', META, 'quota', 'dividing') -- divided anew by the next producer that is refused
end
write_rules(changed)
-- Consumers know when the pause was to end, or that it has no end.
if paused_out and head(1, QUARANTINE) then
  wake()
end
remember('1')
return '1'
