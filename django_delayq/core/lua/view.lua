#!lua flags=no-writes
-- Return everything stored about the live jobs with these ids.
-- ARGV    3 ids one after another, 'Bc0' each; 4 the maximum of bytes of arguments returned for a job (lib/cut), '' or
--         missing = all
-- Returns for each '<Bd' place (0 none, 1 waiting, 2 reserved), due us or deadline ms, then 'I4c0' state, body, gate,
--         and '<I4I4I4' number of payloads, bytes left out of the body, and of the gated one; and '<d' now ms and the
--         names of the tasks in front. Of fewer jobs than ids, when the first ones are large: the others have to be
--         requested in another call.
-- Events  none
-- include keys clock begin marks bytes payload body names cut
local REPLY_BYTES = 1024 * 1024
-- Data that is left out has been read too, and Redis is blocked for that time.
local READ_BYTES = 4 * 1024 * 1024
local most, read = tonumber(ARGV[4] or ''), 0

local function view(id)
  local body = redis.call('HGET', BODY, id)
  local place, at = 0, -1
  if body then
    local deadline = redis.call('ZSCORE', LEASE, id)
    local due = redis.call('ZSCORE', DUE[class_of(body)], id)
    if deadline then
      place, at = 2, tonumber(deadline)
    elseif due then
      place, at = 1, tonumber(due)
    end
  end
  body = body or ''
  name_task_of(body)
  local state, gate = redis.call('HGET', STATE, id) or '', redis.call('HGET', GATE, id) or ''
  local payloads = is_merged(body) and redis.call('ZLEXCOUNT', ORDER, range_of(id)) or 0
  read = read + #body + #gate
  local without, without_gated = 0, 0
  body, without = cut(body, most)
  if gate ~= '' then
    local gated
    gated, without_gated = cut(string.sub(gate, 9), most)
    gate = string.sub(gate, 1, 8) .. gated
  end
  return struct.pack('<BdI4c0I4c0I4c0I4I4I4', place, at, #state, state, #body, body, #gate, gate, payloads, without,
    without_gated)
end

local frame, views, at, size = ARGV[3], {}, 1, 0
while at <= #frame and size < REPLY_BYTES and read < READ_BYTES do
  local id
  id, at = struct.unpack('<Bc0', frame, at)
  views[#views + 1] = view(id)
  size = size + #views[#views]
end
return struct.pack('<d', now_ms) .. frame_of_names() .. table.concat(views)
