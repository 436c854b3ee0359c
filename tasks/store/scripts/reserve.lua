-- Lease a message that was not received through take. ARGV: leases, unacked hash, tag, entry.
redis.call('ZADD', ARGV[1], now(), ARGV[3])
redis.call('HSET', ARGV[2], ARGV[3], ARGV[4])
