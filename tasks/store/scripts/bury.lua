-- Take a reserved message that its worker can't read away, and keep it for people.
-- ARGV: leases, unacked hash, tag, queue, why it can't be read. Returns 1, or 0 if it is not reserved any more.
local entry = redis.call('HGET', ARGV[2], ARGV[3])
if entry then bury(ARGV[4], entry, ARGV[5]) end
redis.call('ZREM', ARGV[1], ARGV[3])
return redis.call('HDEL', ARGV[2], ARGV[3])
