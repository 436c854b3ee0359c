-- Have a worker look into a queue. ARGV: queue.
ring(ARGV[1])
