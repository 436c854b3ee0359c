-- Put a reserved message back at the head of its list, once, unless its request is over.
-- ARGV: leases, unacked hash, tag, lease (s) that must have run out or '' to take it at any age,
-- list, message, its new tag, request id ('' if it has none), queue, how much of a death this counts as.
-- Counts the message by reason, for the metrics.
-- Returns 1 if put back, 0 if dropped because the request is over, -1 if the lease is in force or the message
-- is not reserved any more.
local leases, unacked, tag, lease, list, message, fresh, id, queue, charge = unpack(ARGV)
if lease ~= '' then
  local t, since = now(), redis.call('ZSCORE', leases, tag)
  if not since or tonumber(since) > t - tonumber(lease) then return -1 end
end
local function release()
  redis.call('ZREM', leases, tag)
  redis.call('HDEL', unacked, tag)
end

if redis.call('HEXISTS', unacked, tag) == 0 then
  redis.call('ZREM', leases, tag)
  return -1
end
local state = fields_of(id, 'state')[1]
if state and state ~= 'queued' and state ~= 'running' then
  release()
  return 0
end
-- First the list: if that fails, the message is still reserved.
redis.call('RPUSH', list, message)
release()
ring(queue)
local lost = state == 'running' and tonumber(charge) > 0 and 'child_died' or 'handed_back'
redis.call('HINCRBY', P .. 'requeued', lease ~= '' and 'lease_lost' or lost, 1)
if state then wait_again(id, list, message, fresh, tonumber(charge)) end
return 1
