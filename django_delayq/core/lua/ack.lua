#!lua flags=allow-oom
-- Ack jobs: delete everything they stored, and make the content that is gated behind them live.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' or '0' (the lease was lost) for each.
-- Events  succeeded
-- include keys clock begin window marks body state due wake payload gate event run acked
local seen = replay()
if seen then
  return seen
end
local before = head()
local reply = ack(ARGV[4])
wake_if_earlier(before)
remember(reply)
return reply
