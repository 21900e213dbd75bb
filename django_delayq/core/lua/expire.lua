#!lua flags=allow-oom
-- Delete jobs that were handed out too late to be useful, without an attempt, and make the content that is gated behind
-- them live.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  expired; cancelled
-- include keys clock begin window marks body state due wake payload unite gate event run settle
local seen = replay()
if seen then
  return seen
end
return settle_all(ARGV[4], function(e, s)
  if e.gated or #s.taken == 0 then
    mark_run(e.id, s.taken)
  end
  if e.gated then
    finish_payloads(e.id, s.taken, e.gated)
  elseif #s.taken > 0 then
    -- Includes the payloads that exceeded this attempt's limit: they belong to the same job, and are as late.
    drop_payloads(e.id, mark_payloads)
  end
  end_run(e.id, e.gated)
  emit(e.event)
  return 'expired'
end)
