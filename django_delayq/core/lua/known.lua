#!lua flags=no-writes
-- Check which of some durable generations, or payloads, were stored here: they are live, in the morgue, or have ended
-- and have a completion.
-- ARGV    3 entries (lib/each) with one key, and of a payload its digest
-- Returns one '1' or '0' for each.
-- Events  none
-- include keys clock begin window marks body state payload gate generation each
return for_each(function(id, key, digest)
  return is_known(id, key, digest, redis.call('HGET', BODY, id)) and '1' or '0'
end)
