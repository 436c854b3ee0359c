-- The tags whose lease has run out, oldest first. ARGV: leases, lease (s), most tags.
return redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', now() - tonumber(ARGV[2]), 'LIMIT', 0, ARGV[3])
