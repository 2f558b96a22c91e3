-- What Envoy calls: the check of guard.lua, then the admission of admission.lua. Routes, limits and counters read the
-- headers and metadata that are set here: see envoy_config.py.

local LONGEST_MS = 86400000
local REFUSALS = {
  queue_full = { 429, 8, "the model has as many requests in flight as it can answer in time" },
  shed = { 429, 8, "the model is busy with more important requests" },
  deadline_unreachable = { 504, 4, "the request cannot be answered before its deadline: too much is ahead of it" },
}
local GRPC_UNITS_MS = { H = 3600000, M = 60000, S = 1000, m = 1, u = 0.001, n = 0.000001 }

-- Envoy writes the text as JSON for HTTP, and as the status message for gRPC.
local function answer(handle, is_grpc, status, grpc_status, reason, text)
  local headers = { [":status"] = tostring(status), ["x-brim-reason"] = reason }
  if is_grpc then
    headers["grpc-status"] = tostring(grpc_status)
  end
  if status == 429 or status == 503 then
    headers["retry-after"] = tostring(RETRY_AFTER_S)
  end
  handle:respond(headers, (text:gsub("[^ -~]", "?")))
end

-- The shortest of the request's own bounds in milliseconds. What is not a time from 1 ms to a day is none.
local function shortest_ms(...)
  local shortest
  for place = 1, select("#", ...) do
    local time_ms = select(place, ...)
    if time_ms and time_ms >= 1 and time_ms <= LONGEST_MS and (not shortest or time_ms < shortest) then
      shortest = time_ms
    end
  end
  return shortest
end

-- Of the form "100m".
local function grpc_timeout_ms(header)
  local number, unit = match(header, "^(%d+)([HMSmun])$")
  return number and tonumber(number) * GRPC_UNITS_MS[unit]
end

local function check_of(method, path)
  if path == "/inference.GRPCInferenceService/ModelInfer" then
    return check_grpc
  elseif sub(path, 1, 32) == "/inference.GRPCInferenceService/" then
    return check_read
  elseif method == "POST" then
    local plain = match(path, "^[^?]*")
    if find(plain, "/infer$") then
      return check_infer
    elseif find(plain, "/generate$") or find(plain, "/generate_stream$") then
      return check_json
    end
  end
end

-- A varint of the protocol buffers.
local function varint(value)
  local bytes = {}
  repeat
    local rest = floor(value / 128)
    bytes[#bytes + 1] = string.char(value % 128 + (rest > 0 and 128 or 0))
    value = rest
  until value == 0
  return table.concat(bytes)
end

local function framed(message)
  local length = #message
  return string.char(0, floor(length / 16777216) % 256, floor(length / 65536) % 256, floor(length / 256) % 256, length % 256)
    .. message
end

-- On a stream, a refusal has to come from Triton: no such model is there, and its name is the reason.
local function refusal_of(message, text)
  local id = ""
  pcall(read_fields, message, 1, #message, function(number, kind, from, to)
    if number == 3 and kind == BLOCK then
      id = sub(message, from, to)
    end
  end)
  local name = "(refused by the gateway: " .. text:gsub("[^ -~]", "?") .. ")"
  return framed("\10" .. varint(#name) .. name .. (id ~= "" and "\26" .. varint(#id) .. id or ""))
end

-- The messages at the front of text that are complete, the bad ones replaced; and what is left of it.
local function checked_messages(text)
  local done, at = {}, 1
  while #text - at >= 4 do
    local a, b, c, d = byte(text, at + 1, at + 4)
    local length = a * 16777216 + b * 65536 + c * 256 + d
    if length > LIMITS.body_bytes then
      refuse("a message of %.0f bytes is more than the %d that are taken", length, LIMITS.body_bytes)
    elseif at + 4 + length > #text then
      break
    end
    local frame = sub(text, at, at + 4 + length)
    local fine, fault = pcall(check_grpc, frame)
    if not fine then
      frame = refusal_of(sub(frame, 6), type(fault) == "table" and fault.text or "the request could not be checked")
    end
    done[#done + 1] = frame
    at = at + 5 + length
  end
  return table.concat(done), sub(text, at)
end

-- ModelStreamInfer: no part of a message goes on before all of it is there and was looked at. After a fault none does.
local function look_at_stream(handle)
  local rest, broken = "", false
  for chunk in handle:bodyChunks() do
    local fine, done, left = pcall(checked_messages, rest .. chunk:getBytes(0, chunk:length()))
    broken = broken or not fine
    rest = broken and "" or left
    chunk:setBytes(broken and "" or done)
    if not fine then
      handle:logWarn("a stream was cut off: " .. (type(done) == "table" and done.text or tostring(done)))
    end
  end
end

local function look_at(handle)
  local headers = handle:headers()
  local path = headers:get(":path")
  local is_grpc = sub(headers:get("content-type") or "", 1, 16) == "application/grpc"
  headers:remove("x-brim-model")
  headers:remove("x-brim-around")
  headers:remove("x-envoy-upstream-rq-timeout-ms")
  if not is_grpc and handle:streamInfo():protocol() == "HTTP/2" then
    headers:replace("x-brim-around", "1")
    handle:clearRouteCache()
    return
  end
  if path == "/inference.GRPCInferenceService/ModelStreamInfer" then
    return look_at_stream(handle)
  end
  local check = check_of(headers:get(":method"), path)
  if not check then
    return
  end
  local encoding = headers:get("content-encoding")
  if encoding and encoding ~= "identity" then
    return answer(handle, is_grpc, 415, 12, "compressed", "compressed bodies are not taken: send it as it is")
  end
  local header_length = headers:get("inference-header-content-length")
  local header_ms = tonumber(headers:get("x-brim-timeout-ms") or "")
  local call_ms = grpc_timeout_ms(headers:get("grpc-timeout") or "")
  local class_name = headers:get("x-brim-class")
  -- How it goes on is a matter of the path, whatever its content calls itself.
  local goes_on_as_grpc = check == check_grpc or check == check_read
  -- A gRPC call does not say how long it will be; the window of its connection is its bound.
  local announced = goes_on_as_grpc and 0 or tonumber(headers:get("content-length") or "") or LIMITS.body_bytes
  local held = hold(handle, announced)
  if not held then
    return answer(handle, is_grpc, 503, 14, "unavailable", "the gateway holds as many bodies of other requests as it may")
  end
  local body = handle:body()
  let_go(held)
  local text = body and body:getBytes(0, body:length()) or ""
  local fine, asked, name = pcall(check, text, header_length)
  if not fine then
    return answer(handle, is_grpc, 400, 3, "bad_request", type(asked) == "table" and asked.text or error(asked, 0))
  end
  name = name or match(path, "^/v2/models/([^/?]+)")
  local model = models[name]
  local class
  if model then
    class = class_of(model.bounds, class_name, asked.priority)
    if not class then
      return answer(handle, is_grpc, 400, 3, "unknown_class", format("x-brim-class %s is no class of callers of %s: %s",
        shown(class_name), name, model.bounds.class_names))
    end
    local metadata = handle:streamInfo():dynamicMetadata()
    metadata:set("brim", "model", name)
    metadata:set("brim", "class", class.name)
  end
  headers = handle:headers() -- what was fetched before the body came is dead by now
  local own_ms = shortest_ms(header_ms, asked.timeout and math.ceil(asked.timeout / 1000), class and class.timeout_ms)
  if own_ms then
    headers:replace("x-envoy-upstream-rq-timeout-ms", format("%d", own_ms))
  end
  if goes_on_as_grpc and name and match(name, "^[%w_%-%.]+$") then
    headers:replace("x-brim-model", name)
  end
  if model then
    if not headers:get("x-brim-tenant") then
      headers:replace("x-brim-tenant", "none")
    end
    local reason = admit(handle, model, class, shortest_ms(own_ms, call_ms), goes_on_as_grpc)
    if reason then
      local status, grpc_status, why = unpack(REFUSALS[reason])
      return answer(handle, is_grpc, status, grpc_status, reason, why)
    end
  end
  handle:clearRouteCache()
end

-- After an error of a script, Envoy would let the request pass.
function envoy_on_request(handle)
  local fine, fault = pcall(look_at, handle)
  if not fine then
    handle:logErr("the check of a request failed: " .. tostring(fault))
    local is_grpc = sub(handle:headers():get("content-type") or "", 1, 16) == "application/grpc"
    answer(handle, is_grpc, 500, 13, "internal", "the request could not be checked")
  end
end

-- A caller that has its answer, or the beginning of one, is in flight no longer.
function envoy_on_response(handle)
  local metadata = handle:streamInfo():dynamicMetadata():get("brim")
  local slot = metadata and metadata["slot"]
  if slot then
    forget(slot, handle:headers():get(":status") == "504" and handle:timestamp() or nil)
  end
end
