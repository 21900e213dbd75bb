#!lua flags=allow-oom
-- Store counted attempts that failed, timed out or crashed; the jobs wait for their next attempt.
-- ARGV    3 worker; 4 entries (lib/settle); delay ms is the back-off
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  failed, timeout, crashed; cancelled
-- include keys clock begin window marks body state due wake payload unite gate event run settle
local seen = replay()
if seen then
  return seen
end
return settle_all(ARGV[4], function(e, s)
  local superseded = give_way(e, s)
  if superseded then
    return superseded
  end
  increment(s, 'failures')
  s.failed_at, s.error = now_ms, e.error
  if e.outcome == 'crashed' then
    increment(s, 'crashes')
  end
  if e.own_crash then
    increment(s, 'own_crashes')
  end
  s.unclear = nil
  forget_postponement(s)
  wait_again(e, s, tonumber(score_at(now_ms + math.max(e.delay or 0, 0))))
  redis.call('ZADD', FAILED, score_at(now_ms), e.id)
  redis.call('ZADD', FAILURES, s.failures, e.id)
  emit(e.event)
  return e.outcome
end)
