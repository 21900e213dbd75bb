#!lua flags=allow-oom
-- Jobs that go back without counting an attempt: at their old place, or due after a delay.
-- ARGV    3 worker; 4 entries (lib/settle); error: a byte with the job's new priority, or nothing
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  released or lost, where the entry asks for one; cancelled
-- include keys clock begin sweep window marks body state due wake bytes payload unite gate event lease run settle
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
  s.unclear = has_mark(e, MARK.UNCLEAR) or nil
  if has_mark(e, MARK.POSTPONED) then
    postpone(e, s)
  elseif has_mark(e, MARK.BEGAN) then
    forget_postponement(s)
  end
  if e.error ~= '' then
    redis.call('HSET', BODY, e.id, with_class_of(redis.call('HGET', BODY, e.id) or '', e.error))
  end
  wait_again(e, s, e.delay < 0 and s.due or tonumber(score_at(now_ms + e.delay)))
  emit(e.event)
  return 'released'
end)
