#!lua flags=allow-oom
-- How runs ended whose jobs were acked before they began: nothing but their events.
-- ARGV    3 worker; 4 entries (lib/settle)
-- Returns one '1' for each.
-- Events  the outcome of each
-- include keys clock begin sweep window event settle
local seen = replay()
if seen then
  return seen
end
local entries = read_entries(ARGV[4])
for _, e in ipairs(entries) do
  emit_entry(e, e.outcome)
end
local reply = string.rep('1', #entries)
remember(reply)
return reply
