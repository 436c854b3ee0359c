-- Cancel a waiting or running request. ARGV: id, code, message, time to live of a result (s).
-- Returns the state it was in before, or nil when there is no such request.
local id, key = ARGV[1], record_of(ARGV[1])
local state = redis.call('HGET', key, 'state')
-- A running request's message is in its list again if its worker was lost.
if state == 'queued' or state == 'running' then
  unqueue(key)
  finish(id, 'cancelled', 'cancelled', ARGV[2], ARGV[3], ARGV[4])
end
return state
