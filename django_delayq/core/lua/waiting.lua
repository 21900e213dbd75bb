#!lua flags=no-writes
-- Return the lanes of a shard that have due jobs, group by group in the order of their names.
-- ARGV    3 group behind which to begin, '' = at the first; 4 number of lanes of groups that are looked at, but a group is
--         never divided
-- Returns a map, packed by cmsgpack: due = number of due jobs in all lanes; since = when the first of them was due (us) or
--         false; lanes = {group, task code, number of its due jobs, when the first was due (us), options of that one} each;
--         tasks = code -> name; more = true if there are other groups behind the last one, which is in last.
-- Events  none
-- include keys clock begin body due
local MOST_BYTES = 1000000
local lanes, after, found, looked, bytes, last, more = get_lanes(), ARGV[3], {}, 0, 0, nil, false
local from = after == '' and '-' or '(' .. after .. '\1'
repeat
  local lane, first_due, id = lanes.first(from, '+')
  local group = lane and string.sub(lane, 1, -5)
  more = lane and group ~= last and (looked >= tonumber(ARGV[4]) or bytes > MOST_BYTES)
  if lane and not more then
    if is_due(first_due) then
      local body = group ~= '' and redis.call('HGET', BODY, id) or ''
      local n = redis.call('ZLEXCOUNT', LANE_ORDER, lanes.range(lane, (now_ms + 1) * 1000))
      found[#found + 1], bytes = { group, string.sub(lane, -3, -2), n, first_due, options_of(body) }, bytes + #body
      name_task_of('\0' .. string.sub(lane, -3, -2))
    end
    from, last, looked = '(' .. lane .. '\255', group, looked + (group == '' and 0 or 1)
  end
until more or not lane
return cmsgpack.pack({
  due = redis.call('ZCOUNT', DUE[LANE], '-inf', text(now_ms * 1000 + 999)),
  since = tonumber(redis.call('ZRANGE', DUE[LANE], 0, 0, 'WITHSCORES')[2]) or false,
  lanes = found, tasks = tasks, more = more or false, last = last,
})
