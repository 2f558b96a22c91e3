-- What Envoy calls: the check of guard.lua, then the admission of admission.lua; for streams, both by way of stream.lua.
-- Routes, limits and counters read the headers and metadata that are set here: see envoy_config.py.

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
      return check_generate
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
    return look_at_stream(handle, headers)
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
    -- Over gRPC the name is in what could not be read.
    local named = match(path, "^/v2/models/([^/?]+)")
    if models[named] then
      handle:streamInfo():dynamicMetadata():set("brim", "model", named)
    end
    return answer(handle, is_grpc, 400, 3, "bad_request", type(asked) == "table" and asked.text or error(asked, 0))
  end
  name = name or match(path, "^/v2/models/([^/?]+)")
  local model = models[name]
  local class, metadata
  if model then
    metadata = handle:streamInfo():dynamicMetadata()
    metadata:set("brim", "model", name)
    class_name = class_name or asked.class
    class = class_of(model.bounds, class_name, asked.priority)
    if not class or (asked.class and asked.class ~= class.name) then
      return answer(handle, is_grpc, 400, 3, "unknown_class", no_class(model, name, class and asked.class or class_name))
    end
    metadata:set("brim", "class", class.name)
  end
  headers = handle:headers() -- what was fetched before the body came is dead by now
  local own_ms = shortest_ms(header_ms, asked.timeout and math.ceil(asked.timeout / 1000), class and class.timeout_ms)
  -- Such a text is ended by the model, with an error that its caller can read: cut off here, it would have none.
  local tells = model and model.bounds.tells and check == check_generate
  if tells then
    local whole = find(match(path, "^[^?]*"), "/generate$") ~= nil
    if whole and asked.stream then
      return answer(handle, is_grpc, 400, 3, "bad_request", "a text that comes in pieces is asked for at /generate_stream")
    end
    local one = whole and "answer" or not asked.stream and "event" or nil
    if one then
      metadata:set("brim", "one", one)
    end
    local told = told_json(text, model.bounds.has_classes and class.name, own_ms, asked, one)
    headers:replace("content-length", format("%d", body:setBytes(told)))
  elseif own_ms then
    headers:replace("x-envoy-upstream-rq-timeout-ms", format("%d", own_ms))
  end
  if goes_on_as_grpc and name and match(name, "^[%w_%-%.]+$") then
    headers:replace("x-brim-model", name)
  end
  if model then
    if not headers:get("x-brim-tenant") then
      headers:replace("x-brim-tenant", "none")
    end
    local reason, slot = admit(handle, model, class, shortest_ms(own_ms, call_ms), goes_on_as_grpc)
    if reason then
      local status, grpc_status, why = unpack(REFUSALS[reason])
      return answer(handle, is_grpc, status, grpc_status, reason, why)
    end
    metadata:set("brim", "slot", slot)
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

-- A caller that has its answer, or the beginning of one that is not made in pieces, is in flight no longer.
function envoy_on_response(handle)
  local metadata = handle:streamInfo():dynamicMetadata():get("brim")
  if metadata and metadata["slot"] then
    local headers = handle:headers()
    local status = headers:get(":status")
    if models[metadata["model"]].bounds.pieces and not headers:get("x-brim-reason") then
      if status ~= "200" or metadata["one"] then
        reword(handle, status, metadata["one"])
      elseif sub(headers:get("content-type") or "", 1, 17) == "text/event-stream" then
        look_at_pieces(handle)
      end
    end
    forget(metadata["slot"], status == "504" and time_ms(handle) or nil)
  elseif metadata and metadata["stream"] then
    look_at_answers(handle, metadata["stream"])
  end
end
