-- Wake a worker to look into a queue. ARGV: queue.
ring(ARGV[1])
