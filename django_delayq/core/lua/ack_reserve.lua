#!lua flags=allow-oom
-- Ack finished jobs and reserve due ones in one step, for a busy worker.
-- ARGV    3 worker; 4 ack entries (lib/settle); 5 limit; 6 and 7 the first and the last class that is served
--         (lib/keys); 8 limits of tasks (lib/park); missing = all classes, no limits
-- Returns {one '1' or '0' for each entry, the batch (lib/reserve)}.
-- Events  succeeded
-- include keys clock begin window marks body names state due wake payload gate event run acked
local function make_parking(served)
  -- include park
end
-- include reserve
served = { tonumber(ARGV[6]) or 1, tonumber(ARGV[7]) or QUARANTINE, limits = ARGV[8] or '' }
local seen = replay()
if seen then
  local token, answers = string.match(seen, '^(%d+):(.*)$')
  return { answers, reserve_again(tonumber(token)) }
end
local answers = ack(ARGV[4])
local batch, token = reserve(tonumber(ARGV[5]), ARGV[3])
if token > 0 or answers ~= '' or not closing then
  remember(text(token) .. ':' .. answers)
end
return { answers, batch }
