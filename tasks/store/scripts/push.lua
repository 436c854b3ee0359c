-- Push a message, without a request's record, unless the queue is full.
-- KEYS: the queue's lists by priority; the first has the queue's name.
-- ARGV: cap (0: none), index of the list, message.
-- Returns 1 if pushed, -(waiting + 1) if the queue is full.
local full = refusal(KEYS, tonumber(ARGV[1]))
if full then return full end
push(KEYS[1], KEYS[tonumber(ARGV[2])], ARGV[3])
return 1
