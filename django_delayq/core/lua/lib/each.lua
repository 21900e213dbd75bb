-- Loop of the scripts that change a list of jobs. Includes: begin window marks.
-- An entry is {id, keys, digest}: keys and digest name the generation that is meant (lib/generation); '' = whichever
-- there is.
-- A call ends early behind this many payloads, because other clients are waiting.
local MOST_PAYLOADS = 1000

-- Calls `act(id, keys, digest)` for each entry of ARGV[3], packed one after another. It returns a letter, and how many
-- payloads it changed. Return the letters one after another: fewer than entries, if the first ones had so many payloads
-- that the others have to be sent in another call.
local function for_each(act)
  local letters, payloads = {}, 0
  for i, entry in ipairs({ cmsgpack.unpack(ARGV[3]) }) do
    if payloads >= MOST_PAYLOADS then
      break
    end
    local letter, changed = act(unpack(entry))
    letters[i] = letter
    payloads = payloads + (changed or 0)
  end
  return table.concat(letters)
end

-- Ends the call. It is not remembered if nothing could be changed here: x (too late), v (the shard is closed) and l (a
-- live job prevents it).
local function answer(letters)
  write_marks()
  if string.find(letters, '[^xvl]') then
    remember(letters)
  end
  return letters
end
