-- The tags whose lease has run out, oldest first. ARGV: leases, lease (s), tags at most.
return redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', now() - tonumber(ARGV[2]), 'LIMIT', 0, ARGV[3])
