#!lua flags=no-writes
-- Check which of some ids are live in this shard.
-- ARGV    3 ids one after another, 'Bc0' each
-- Returns one '1' or '0' for each.
-- Events  none
-- include keys
local frame, answers, at = ARGV[3], {}, 1
while at <= #frame do
  local id
  id, at = struct.unpack('<Bc0', frame, at)
  answers[#answers + 1] = redis.call('HEXISTS', BODY, id)
end
return table.concat(answers)
