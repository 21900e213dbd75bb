#!lua flags=allow-oom
-- Jobs that go back without counting an attempt: at their old place, or due after a delay.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  released or lost, where the entry asks for one; cancelled
-- include keys clock begin window marks body state due wake payload unite gate event run settle
-- The attempt could not begin. The time counts from the first of the releases in a row for the same reason.
local function postpone(e, s)
  if s.postponed_for ~= e.reason then
    s.postponed_at, s.postponed_for = now_ms, e.reason
  end
end

local seen = replay()
if seen then
  return seen
end
return settle_all(ARGV[4], function(e, s)
  local superseded = give_way(e, s)
  if superseded then
    return superseded
  end
  s.unclear = e.unclear
  if e.postpone then
    postpone(e, s)
  elseif e.began then
    forget_postponement(s)
  end
  if e.priority then
    redis.call('HSET', BODY, e.id, with_class_of(redis.call('HGET', BODY, e.id) or '', e.priority))
  end
  wait_again(e, s, e.delay and tonumber(score_at(now_ms + e.delay)) or s.due)
  emit(e.event)
  return 'released'
end)
