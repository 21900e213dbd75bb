#!lua flags=allow-oom
-- Set the queue policy of a shard.
-- ARGV    3 flags to clear; 4 flags to set: 1 paused for new jobs, 2 paused for reserving, 4 closing (no new ids), 8
--         classes are weighted, 32 producers are paused; 5 most live ids of the queue, 6 most morgue records, 7 ms that a morgue
--         record is kept: 0 = no limit, '' = unchanged; 8 and 9 when the pauses for new jobs and for reserving end, ms:
--         0 = not by themselves, '' = unchanged; 10 ms after which a due job of a less urgent class starves (lib/reserve):
--         0 = never, '' = unchanged
-- Returns the last fencing token.
-- Events  none
-- include keys clock begin sweep window body due wake rules
local seen = replay()
if seen then
  return seen
elseif ended then
  return text(last_token)
end
local away, put = tonumber(ARGV[3]), tonumber(ARGV[4])
local result = 0
for bit = 0, 7 do
  local flag = 2 ^ bit
  local is_set = math.floor(flags / flag) % 2 == 1 and math.floor(away / flag) % 2 == 0
  if is_set or math.floor(put / flag) % 2 == 1 then
    result = result + flag
  end
end
if result % 8 >= CLOSING then
  redis.call('HSETNX', META, 'closed', text(now_us))
end
local limit, graves, ttl = tonumber(ARGV[5]) or max_length, tonumber(ARGV[6]) or morgue_max, tonumber(ARGV[7]) or morgue_ttl
if limit ~= max_length then
  redis.call('HDEL', META, 'quota', 'dividing') -- divided anew by the next producer that is refused
end
local starve_after = tonumber(ARGV[10]) or (meta[6] and struct.unpack('<d', meta[6], 42) or 0)
write_rules(result, limit, graves, ttl, tonumber(ARGV[8]) or in_until, tonumber(ARGV[9]) or out_until, starve_after)
-- Consumers know when the pause was to end, or that it has no end.
if paused_out and head(1, PARKED) then
  wake()
end
local reply = text(last_token)
remember(reply)
return reply
