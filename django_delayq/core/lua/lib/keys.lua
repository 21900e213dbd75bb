-- The keys of one shard, in the order of SHARD_KEYS (core/records/keys.py), and its wake list. A script that works on a
-- shard declares them all (one slot, few and fixed); schedule_fresh.lua needs seven.
-- DUE: the priority classes, and behind them, whatever the priority, those that wait for quarantine and those that are
-- in lanes: behind a limit (lib/lanes).
local DUE = { KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[27], KEYS[29] }
local QUARANTINE, LANE = 9, 10
local LEASE, BODY, STATE, GATE = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local ORDER, PAYLOAD = KEYS[13], KEYS[14]
local FAILED, FAILURES = KEYS[15], KEYS[16]
local MORGUE, MORGUE_ID, GRAVE = KEYS[17], KEYS[18], KEYS[19]
local REPLY, WINDOW = KEYS[20], KEYS[21]
local COUNT, EVENT, META, TASK, MARKS = KEYS[22], KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local BEGUN, LANE_ORDER, TURNS, BLOCKED, WAKE = KEYS[28], KEYS[30], KEYS[31], KEYS[32], KEYS[33]
