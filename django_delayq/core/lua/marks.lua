#!lua flags=allow-oom
-- Return completions of durable generations (lib/marks), after deleting those that were handled.
-- ARGV    3 completions to delete, '<c16 key><B end><d stamp>' each; one that has changed since stays; 4 how many are
--         returned
-- Returns completions in the same form, in no order.
-- Events  none
-- include keys
local MARK = 25
local frame, limit = ARGV[3], tonumber(ARGV[4])
for at = 1, #frame - MARK + 1, MARK do
  local key = string.sub(frame, at, at + 15)
  if redis.call('HGET', MARKS, key) == string.sub(frame, at + 16, at + MARK - 1) then
    redis.call('HDEL', MARKS, key)
  end
end
-- Chosen at random, so that completions that cannot be handled yet do not block the others.
return limit > 0 and table.concat(redis.call('HRANDFIELD', MARKS, limit, 'WITHVALUES')) or ''
