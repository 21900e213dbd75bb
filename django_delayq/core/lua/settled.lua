#!lua flags=allow-oom
-- Marks of durable generations (lib/settled): takes those that were dealt with off, tells others.
-- ARGV    3 marks to forget, '<c16 key><B end><d stamp>' each; one that is another by now stays; 4 how many are told
-- Returns marks in the same form, in no order.
-- Events  none
-- include keys
local MARK = 25
local frame, limit = ARGV[3], tonumber(ARGV[4])
for at = 1, #frame - MARK + 1, MARK do
  local key = string.sub(frame, at, at + 15)
  if redis.call('HGET', SETTLED, key) == string.sub(frame, at + 16, at + MARK - 1) then
    redis.call('HDEL', SETTLED, key)
  end
end
-- By lot: those that nobody can deal with yet do not stand before the others.
return limit > 0 and table.concat(redis.call('HRANDFIELD', SETTLED, limit, 'WITHVALUES')) or ''
