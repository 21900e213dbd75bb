#!lua flags=no-writes
-- Find the jobs that a caller means.
-- ARGV    3 entries (lib/each)
-- Returns one letter for each: l(ive: it waits or runs), g(ated behind the attempt of another one), n (not live any more)
--         or v (no live job of the id in a closed shard).
-- Events  none
-- include keys clock begin window marks body state payload gate generation each
return for_each(function(id, keys, digest)
  local body = redis.call('HGET', BODY, id)
  if not body then
    return closing and 'v' or 'n'
  end
  return string.sub(place_of(id, body, keys, digest) or 'none', 1, 1)
end)
