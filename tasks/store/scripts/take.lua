-- Take the next message of a queue and lease it in one script, so that no message is lost in between.
-- KEYS: the queue's lists by priority; the first has the queue's name.
-- ARGV: leases, unacked hash, the newest message format that the worker knows (missing: any). Messages of
-- newer formats keep their places, for workers that know the format.
-- Returns the message, or nil when there is none; if it passed over messages of newer formats, or buried
-- messages that can't be read, returns {message or '', id of the first one passed over or '', its format or '',
-- number of buried messages}.
-- A message leaves its list last: what fails before that undoes the lease and leaves the message in its place.
local LOOK_AT = 1000
local known, passed, buried = tonumber(ARGV[3]), nil, 0

local function format_of(headers)
  if headers.v == nil then return 1 end
  return tonumber(headers.v) or math.huge
end

local function has_texts(value, ...)
  if type(value) ~= 'table' then return false end
  for _, name in ipairs({ ... }) do
    if type(value[name]) ~= 'string' then return false end
  end
  return true
end

-- A message as a table with all that a lease needs; nil if it is no Celery message.
local function read(message)
  local ok, decoded = pcall(cjson.decode, message)
  if not ok or type(decoded) ~= 'table' or not has_texts(decoded.properties, 'delivery_tag') then return nil end
  if not has_texts(decoded.properties.delivery_info, 'exchange', 'routing_key') then return nil end
  if type(decoded.headers) ~= 'table' then decoded.headers = {} end
  return decoded
end

local function bury_unreadable(list)
  while buried < LOOK_AT do
    local message = redis.call('LINDEX', list, -1)
    if not message or read(message) then return end
    bury(KEYS[1], message, 'it is no message of Celery')
    redis.call('RPOP', list)
    buried = buried + 1
  end
end

-- The next message that this worker may take, decoded, and its index from the right.
local function find_in(list)
  bury_unreadable(list)
  for i = -1, -math.min(redis.call('LLEN', list), LOOK_AT), -1 do
    local message = redis.call('LINDEX', list, i)
    local decoded = read(message)
    local headers = decoded and decoded.headers
    if decoded and (not known or format_of(headers) <= known) then return message, decoded.properties, i end
    passed = passed or decoded and { tostring(headers.id), tostring(format_of(headers)) }
  end
end

local function move(list, message, properties, i)
  local tag, info = properties.delivery_tag, properties.delivery_info
  -- kombu's entry is a JSON list of the message, the exchange and the routing key.
  local entry = '[' .. message .. ',' .. cjson.encode(info.exchange) .. ',' .. cjson.encode(info.routing_key) .. ']'
  local replies = { redis.pcall('ZADD', ARGV[1], now(), tag) }
  if not is_error(replies[1]) then table.insert(replies, redis.pcall('HSET', ARGV[2], tag, entry)) end
  if not is_error(replies[#replies]) then
    table.insert(replies, i == -1 and redis.pcall('RPOP', list) or redis.pcall('LREM', list, -1, message))
  end
  local failed = is_error(replies[#replies]) and replies[#replies] or nil
  if failed then
    redis.pcall('ZREM', ARGV[1], tag)
    redis.pcall('HDEL', ARGV[2], tag)
  end
  return failed
end

local function take()
  for n = 1, #KEYS do
    local message, properties, i = find_in(KEYS[n])
    if message then return message, move(KEYS[n], message, properties, i) end
  end
end

local message, failed = take()
if failed then return failed end
if message and redis.call('EXISTS', unpack(KEYS)) > 0 then ring(KEYS[1]) end
if not passed and buried == 0 then return message end
return { message or '', passed and passed[1] or '', passed and passed[2] or '', buried }
