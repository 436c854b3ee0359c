-- Push a message that stands for no request, below the cap.
-- KEYS: the queue's lists by priority, the first of the queue's own name. ARGV: cap (0: none), index of the list, message.
-- Returns 1 pushed, -(waiting + 1) when full.
local full = refusal(KEYS, tonumber(ARGV[1]))
if full then return full end
push(KEYS[1], KEYS[tonumber(ARGV[2])], ARGV[3])
return 1
