-- Push a message below the cap, once per request, and mark its record as queued.
-- KEYS: the queue's lists by priority, the first of the queue's own name.
-- ARGV: cap (0: none), index of the list, message, request id ('' if it has none).
-- Returns 1 pushed, 0 already there, or -(waiting + 1) when full.
local cap, index, message, id = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local key = record_of(id)
local state = redis.call('HGET', key, 'state')
if state and state ~= 'new' then return 0 end
local waiting = 0
for i = 1, #KEYS do waiting = waiting + redis.call('LLEN', KEYS[i]) end
if cap > 0 and waiting >= cap then return -(waiting + 1) end
redis.call('LPUSH', KEYS[index], message)
ring(KEYS[1])
if state then
  redis.call('HSET', key, 'state', 'queued', 'list', KEYS[index], 'message', message)
  redis.call('PERSIST', key)
  local timeout = tonumber(redis.call('HGET', key, 'queue_timeout'))
  redis.call('ZADD', P .. 'deadlines', now() + timeout, id)
end
return 1
