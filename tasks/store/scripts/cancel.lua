-- Cancel a waiting or running request. ARGV: id, code, message, time to live of a result (s), the owner who asks
-- ('': may cancel any).
-- Returns the state it was in before, or nil when there is no such request of this owner.
local id, key = ARGV[1], record_of(ARGV[1])
local state, owner = unpack(redis.call('HMGET', key, 'state', 'owner'))
if ARGV[5] ~= '' and owner and owner ~= '' and owner ~= ARGV[5] then return nil end
-- A running request's message is in its list again if its worker was lost.
if state == 'queued' or state == 'running' then
  unqueue(key)
  finish(id, 'cancelled', 'cancelled', ARGV[2], ARGV[3], ARGV[4])
end
return state
