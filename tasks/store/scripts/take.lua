-- Take the next message of a queue and lease it in one script, so that no message is lost in between.
-- KEYS: the queue's lists by priority; the first has the queue's name.
-- ARGV: leases, unacked hash, the newest message format that the worker knows (missing: any). Messages of
-- newer formats keep their places, for workers that know the format.
-- Returns the message, or nil when there is none; if it passed over messages of newer formats, returns
-- {message or '', id of the first of them, its format}.
local LOOK_AT = 1000
local known, passed = tonumber(ARGV[3]), nil

local function format_of(headers)
  if headers.v == nil then return 1 end
  return tonumber(headers.v) or math.huge
end

-- A message as a table with properties; nil if it is no Celery message.
local function read(message)
  local ok, decoded = pcall(cjson.decode, message)
  if not ok or type(decoded) ~= 'table' or type(decoded.properties) ~= 'table' then return nil end
  if type(decoded.headers) ~= 'table' then decoded.headers = {} end
  return decoded
end

local function take_from(list)
  while redis.call('LLEN', list) > 0 and not read(redis.call('LINDEX', list, -1)) do redis.call('RPOP', list) end
  for i = -1, -math.min(redis.call('LLEN', list), LOOK_AT), -1 do
    local message = redis.call('LINDEX', list, i)
    local decoded = read(message)
    local headers = decoded and decoded.headers
    if decoded and (not known or format_of(headers) <= known) then
      if i == -1 then redis.call('RPOP', list) else redis.call('LREM', list, -1, message) end
      return message, decoded.properties
    end
    passed = passed or decoded and { tostring(headers.id), tostring(format_of(headers)) }
  end
end

local function lease(message, properties)
  local info = properties.delivery_info
  redis.call('ZADD', ARGV[1], now(), properties.delivery_tag)
  -- kombu's entry is a JSON list of the message, the exchange and the routing key.
  redis.call('HSET', ARGV[2], properties.delivery_tag,
    '[' .. message .. ',' .. cjson.encode(info.exchange) .. ',' .. cjson.encode(info.routing_key) .. ']')
  if redis.call('EXISTS', unpack(KEYS)) > 0 then ring(KEYS[1]) end
end

for i = 1, #KEYS do
  local message, properties = take_from(KEYS[i])
  if message then
    lease(message, properties)
    return passed and { message, unpack(passed) } or message
  end
end
return passed and { '', unpack(passed) }
