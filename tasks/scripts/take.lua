-- Take the next message of a queue and lease it, in one step: nothing can be lost between the two.
-- KEYS: the queue's lists by priority, the first of the queue's own name. ARGV: leases, unacked hash.
-- Returns the message, or nil when none waits.
for i = 1, #KEYS do
  local message = redis.call('RPOP', KEYS[i])
  if message then
    local properties = cjson.decode(message).properties
    local info = properties.delivery_info
    redis.call('ZADD', ARGV[1], now(), properties.delivery_tag)
    -- kombu's entry is a JSON list of the message, the exchange and the routing key.
    redis.call('HSET', ARGV[2], properties.delivery_tag,
      '[' .. message .. ',' .. cjson.encode(info.exchange) .. ',' .. cjson.encode(info.routing_key) .. ']')
    if redis.call('EXISTS', unpack(KEYS)) > 0 then ring(KEYS[1]) end
    return message
  end
end
