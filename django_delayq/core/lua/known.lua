#!lua flags=no-writes
-- Check which of some durable generations, or payloads, were stored here: they are live, in the morgue, or have ended
-- and have a completion.
-- ARGV    3 entries one after another: '<Bc0 id><c16 key><Bc0 digest of the payload, or empty>'
-- Returns one '1' or '0' for each.
-- Events  none
-- include keys clock begin marks bytes body payload known
local frame, answers, at = ARGV[3], {}, 1
while at <= #frame do
  local id, key, digest
  id, key, digest, at = struct.unpack('<Bc0c16Bc0', frame, at)
  answers[#answers + 1] = is_known(id, key, digest, redis.call('HGET', BODY, id)) and '1' or '0'
end
return table.concat(answers)
