-- Whether Redis would take a request now: fails as submit does when Redis is full, a replica, and so on.
redis.call('SET', P .. 'probe', 1, 'PX', 1000)
