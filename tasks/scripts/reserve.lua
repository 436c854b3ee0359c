-- Note a message as reserved by a worker from now on. ARGV: leases, unacked hash, tag, entry.
redis.call('ZADD', ARGV[1], now(), ARGV[3])
redis.call('HSET', ARGV[2], ARGV[3], ARGV[4])
