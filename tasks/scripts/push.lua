-- Push a message below the cap, once per request, and mark its record as queued.
-- KEYS: the queue's lists by priority, the first of the queue's own name.
-- ARGV: cap (0: none), index of the list, message, request id ('' if it has none), delivery tag, '1' if it must
-- have a record.
-- Returns 1 pushed, 0 already there, -(waiting + 1) when full, 2 when its record is gone.
local cap, index, message, id = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local key = record_of(id)
local r = redis.call('HMGET', key, 'state', 'queue_timeout', 'time_limit', 'created', 'name')
if not r[1] and ARGV[6] == '1' then return 2 end
if r[1] and r[1] ~= 'new' then return 0 end
local waiting = 0
for i = 1, #KEYS do waiting = waiting + redis.call('LLEN', KEYS[i]) end
if cap > 0 and waiting >= cap then return -(waiting + 1) end
redis.call('LPUSH', KEYS[index], message)
ring(KEYS[1])
if r[1] then
  local t = now()
  redis.call('HSET', key, 'state', 'queued', 'list', KEYS[index], 'message', message, 'tag', ARGV[5] or '')
  redis.call('PERSIST', key)
  if r[5] then redis.call('PERSIST', r[5]) end
  redis.call('ZADD', P .. 'active', t, id)
  local latest = t + tonumber(r[2])
  if r[3] then latest = math.min(latest, tonumber(r[4]) + tonumber(r[3])) end
  redis.call('ZADD', P .. 'deadlines', latest, id)
end
return 1
