#!lua flags=allow-oom
-- Write the result record of a job whose result a caller will read. An attempt that was overtaken by a later one
-- changes nothing.
-- KEYS    1 record (a map in MessagePack): token of the last attempt, lists of its workers and errors, `ended` (the last
--         attempt whose end was written), and what callers set: head, state, first, last, end, value
-- ARGV    1 verb: create (only if there is none), start and end (of an attempt); 2 ms that the record is kept from now on;
--         3 a map: token of the attempt, worker, error, fields: set; head and first only if they do not exist
-- Returns '' when nothing was changed, else the record
-- Events  none
local record, verb = KEYS[1], ARGV[1]
local call, stored = cmsgpack.unpack(ARGV[3]), redis.call('GET', record)
local r = stored and cmsgpack.unpack(stored) or { token = 0, workers = {}, errors = {} }

local function append(list, most, item)
  if item ~= '' then
    list[#list + 1] = item
    if #list > most then
      table.remove(list, 1)
    end
  end
end

if r.token > call.token or (verb == 'create' and stored) then
  -- Before Redis 7 the loader prepends a write that removes the record's time to live.
  redis.call('PEXPIRE', record, ARGV[2])
  return ''
end
if r.token < call.token then
  append(r.workers, 1000, call.worker)
  r.token = call.token
end
if verb == 'start' then
  r['end'], r.value = nil, nil
elseif verb == 'end' and r.ended ~= call.token then
  append(r.errors, 20, call.error)
  r.ended = call.token
end
for name, value in pairs(call.fields) do
  if (name ~= 'head' and name ~= 'first') or not r[name] then
    r[name] = value
  end
end
stored = cmsgpack.pack(r)
redis.call('SET', record, stored, 'PX', ARGV[2])
return stored
