#!lua flags=no-writes
-- Return payloads of a live merged job in score order, a piece at a time; nothing is changed.
-- ARGV    3 id; 4 '' or the cursor that the previous piece returned; 5 maximum number (250)
-- Returns {cursor for the next piece, '' at the end; payload records}.
-- Events  none
-- include keys clock begin marks payload
local from, behind = range_of(ARGV[3])
if ARGV[4] ~= '' then
  from = '(' .. ARGV[4]
end
local members = redis.call('ZRANGEBYLEX', ORDER, from, behind, 'LIMIT', 0, tonumber(ARGV[5]))
local records, seen = read_payloads(fields_of_members(members), TAKE_BYTES)
return { #members < tonumber(ARGV[5]) and seen == #members and '' or members[seen], records }
