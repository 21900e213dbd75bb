-- Start of every operation: the constants of the shard, and the current time.
-- ARGV[1] request id; ARGV[2] '<I4 ms for which the caller may repeat the call><I4 lease ms><I4 event cap><I4 shard>
-- <Bc0 wake channel, empty = wake list>'.
local request = ARGV[1]
local repeated_ms, lease_ms, event_cap, shard, channel = struct.unpack('<I4I4I4I4Bc0', ARGV[2])

local now_us = server_us()
local meta = redis.call('HMGET', META, 'clock', 'seq', 'token', 'hold', 'classes', 'rules', 'durable', 'last_event')
local clock_seen, seq, last_token = tonumber(meta[1]) or 0, tonumber(meta[2]) or 0, tonumber(meta[3]) or 0
local hold_ms, classes = tonumber(meta[4]) or 0, tonumber(meta[5]) or 0
local last_event = meta[8] or '0-0'
-- The rules of this shard: what follows from the policy of its queue (core/layouts.py), `closing` (no new ids), and
-- `ended`, a tombstone (retire.lua): the shard has no jobs, accepts none, and neither counts nor remembers anything.
-- What is missing has no effect; most shards have none.
local rules = meta[6] and cmsgpack.unpack(meta[6]) or {}
local closing, ended = rules.closing, rules.ended
-- If the clock moves back by less than a lease, time stands still. A larger step is accepted as the new time; every
-- deadline is doubtful then, so no lease is reaped for one lease.
local stepped_back = clock_seen - now_us > lease_ms * 1000
if now_us < clock_seen and not stepped_back then
  now_us = clock_seen
end
local now_ms = math.floor(now_us / 1000)
-- A pause ends by itself at this moment (ms; 0 = it has to be ended).
local function is_before(moment)
  return moment and (moment == 0 or now_ms < moment)
end
local paused_in, paused_out = is_before(rules.paused_in) or rules.producers_paused, is_before(rules.paused_out)
if stepped_back then
  hold_ms = now_ms + lease_ms
end

-- include text

-- Return a due or updated score: milliseconds in front, place of arrival behind, so that equal times stay in order.
local function score_at(ms)
  seq = seq + 1
  return text(ms * 1000 + seq % 1000)
end

local function keep_clock()
  redis.call('HSET', META, 'clock', text(now_us), 'seq', text(seq), 'token', text(last_token), 'hold', text(hold_ms))
end

local function count(name, by)
  if by > 0 and not ended then
    redis.call('HINCRBY', COUNT, name, by)
  end
end
