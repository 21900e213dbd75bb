-- Loop of the scripts that change a list of jobs. Includes: begin sweep window marks.
-- An entry is '<Bc0 id><Bc0 keys><Bc0 digest>': keys and digest name the generation that is meant (lib/generation); ''
-- = whichever there is.
-- A call ends early behind this many payloads, because other clients are waiting.
local MOST_PAYLOADS = 1000

-- Calls `act(id, keys, digest)` for each entry of ARGV[3]. It returns a letter, and how many payloads it changed. Return
-- the letters one after another: fewer than entries, if the first ones had so many payloads that the others have to be
-- sent in another call.
local function for_each(act)
  local frame, letters, at, payloads = ARGV[3], {}, 1, 0
  while at <= #frame and payloads < MOST_PAYLOADS do
    local id, keys, digest
    id, keys, digest, at = struct.unpack('<Bc0Bc0Bc0', frame, at)
    local letter, changed = act(id, keys, digest)
    letters[#letters + 1] = letter
    payloads = payloads + (changed or 0)
  end
  return table.concat(letters)
end

-- Ends the call. It is not remembered if nothing could be changed here: x (too late), v and e (the shard is closed).
local function answer(letters)
  write_marks()
  if string.find(letters, '[^xve]') then
    remember(letters)
  end
  return letters
end
