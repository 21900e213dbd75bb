#!lua flags=allow-oom
-- Write the result record of a job whose result a caller will read. An attempt that was overtaken by a later one
-- changes nothing.
-- KEYS    1 record (a map in MessagePack): token, failures and crashes of the last attempt, lists of its workers and errors,
--         `ended` (the last attempt whose end was written), and what callers set: head, state, first, last, end, value
-- ARGV    1 verb: create (only if there is none), start and end (of an attempt), close (the job is gone without one); 2
--         ms that the record is kept from now on; 3 a map: token of the attempt, failures and crashes of the job before it,
--         worker, error of the attempt, crashed and overran: error of the previous attempt, if it died with its process /
--         was ended by its time limit without leaving one; fields: set; head and first only if they do not exist
-- Returns '' when nothing was changed, else the record
-- Events  none
local record, verb = KEYS[1], ARGV[1]
local call, stored = cmsgpack.unpack(ARGV[3]), redis.call('GET', record)
local r = stored and cmsgpack.unpack(stored) or { token = 0, failures = 0, crashes = 0, workers = {}, errors = {} }

local function append(list, most, item)
  if item and item ~= '' then
    list[#list + 1] = item
    if #list > most then
      table.remove(list, 1)
    end
  end
end

local function add_error(error)
  append(r.errors, 20, error)
end

-- Before Redis 7 the loader prepends a write that removes the record's time to live.
local function unchanged()
  redis.call('PEXPIRE', record, ARGV[2])
  return ''
end

if verb == 'create' then
  if stored then
    return unchanged()
  end
elseif verb == 'close' then
  if not stored or r.ended == 'closed' then
    return unchanged()
  end
  add_error(call.error)
  r.ended = 'closed'
else
  if r.token > call.token then
    return unchanged()
  elseif r.token < call.token then
    if r.state == 'RUNNING' and call.failures > r.failures then
      add_error(call.crashes > r.crashes and call.crashed or call.overran)
    end
    append(r.workers, 1000, call.worker)
    r.token, r.failures, r.crashes = call.token, call.failures, call.crashes
  end
  if verb == 'start' then
    r['end'], r.value = nil, nil
  elseif r.ended ~= call.token then
    add_error(call.error)
    r.ended = call.token
  end
end
for name, value in pairs(call.fields) do
  if (name ~= 'head' and name ~= 'first') or not r[name] then
    r[name] = value
  end
end
stored = cmsgpack.pack(r)
redis.call('SET', record, stored, 'PX', ARGV[2])
return stored
