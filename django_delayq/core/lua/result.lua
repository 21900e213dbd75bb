#!lua flags=allow-oom
-- Write the result record of a job whose result a caller will read. An attempt that was overtaken by a later one
-- changes nothing.
-- KEYS    1 record (hash): head, state, token and counters of the last attempt, first and last start, end, value;
--         workers and errors, one a line
-- ARGV    1 verb: create (only if there is none), start and end (of an attempt), close (the job is gone without one); 2
--         token of the attempt; 3 ms that the record is kept from now on; 4 failures and 5 crashes of the job before
--         the attempt; 6 worker; 7 the attempt's error, '' = none; 8 and 9 error of the previous attempt, if it died
--         with its process / was ended by its time limit without leaving one; 10 … field, value: set. head and first
--         only if they do not exist
-- Returns '0' when nothing was changed, else all fields and values
-- Events  none
local record = KEYS[1]
local verb, token, failures, crashes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local MOST = { workers = 1000, errors = 20 }

-- Before Redis 7 the loader prepends a write that removes the record's time to live.
local function unchanged()
  redis.call('PEXPIRE', record, ARGV[3])
  return '0'
end

local function get(name)
  return redis.call('HGET', record, name)
end

local function number(name)
  return tonumber(get(name) or '0') or 0
end

local function append(name, line)
  if line == '' then
    return
  end
  local text = (get(name) or '') .. line .. '\n'
  local _, lines = string.gsub(text, '\n', '')
  while lines > MOST[name] do
    text = string.sub(text, string.find(text, '\n', 1, true) + 1)
    lines = lines - 1
  end
  redis.call('HSET', record, name, text)
end

local function begin()
  if get('state') == 'RUNNING' and failures > number('failures') then
    append('errors', crashes > number('crashes') and ARGV[8] or ARGV[9])
  end
  append('workers', ARGV[6])
  redis.call('HSET', record, 'token', ARGV[2], 'failures', ARGV[4], 'crashes', ARGV[5])
end

local last_token = number('token')
if verb == 'create' then
  if redis.call('EXISTS', record) == 1 then
    return unchanged()
  end
elseif verb == 'close' then
  if redis.call('EXISTS', record) == 0 or get('ended') == 'closed' then
    return unchanged()
  end
  append('errors', ARGV[7])
  redis.call('HSET', record, 'ended', 'closed')
else
  if last_token > token then
    return unchanged()
  end
  if last_token < token then
    begin()
  end
  if verb == 'start' then
    redis.call('HDEL', record, 'end', 'value')
  elseif get('ended') ~= ARGV[2] then
    append('errors', ARGV[7])
    redis.call('HSET', record, 'ended', ARGV[2])
  end
end
for at = 10, #ARGV, 2 do
  local name = ARGV[at]
  redis.call((name == 'head' or name == 'first') and 'HSETNX' or 'HSET', record, name, ARGV[at + 1])
end
redis.call('PEXPIRE', record, ARGV[3])
return redis.call('HGETALL', record)
