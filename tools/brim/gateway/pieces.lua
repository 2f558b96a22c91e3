-- Texts that come in pieces: what a model that makes them is told, what it says when it refuses, and when one has ended.
--
-- The model's own host bounds how many of its texts are made and wait. It knows a caller's class and deadline by parameters
-- of the request, which is where the gateway puts them: Triton hands no header of an HTTP request on to /generate.
-- HOST_ERRORS comes from the generated configuration: the word in front of an error's text -> the status it has here.
--
-- Triton looks at the connection of an HTTP request again only once an answer has begun, so a caller that leaves before is
-- not seen. Hence what comes for /generate goes on to /generate_stream (see routes.py), the host begins an answer that has no
-- pieces at once, and of that answer the caller gets the last event.

-- Of what came before, this much is kept: an error's beginning may be cut in two.
local ERROR_EVENT = 'data: {"error":"'

-- Of an error's text, the word that the host puts in front of it.
local function host_reason(text)
  local reason = match(text, "^([%l_]+): ")
  return reason and HOST_ERRORS[reason] and reason or nil
end

-- The body of a request with its class, where the model knows classes, and its time, in place of one that is not the shortest.
local function told_json(text, class_name, own_ms, asked, begins)
  local more = { begins and '"brim_begin":true' or nil }
  if class_name and not asked.class then
    more[#more + 1] = format('"brim_class":"%s"', class_name)
  end
  if own_ms then
    local own_us = format("%.0f", own_ms * 1000)
    if asked.timeout then
      local behind = find(text, "[^%-%d]", asked.timeout_at)
      text = sub(text, 1, asked.timeout_at - 1) .. own_us .. sub(text, behind)
    else
      more[#more + 1] = '"timeout":' .. own_us
    end
  end
  local brace = find(text, "{", 1, true)
  local rest = past_space(text, brace + 1)
  local comma = #more > 0 and byte(text, rest) ~= CLOSE_OBJECT and "," or ""
  return sub(text, 1, brace) .. table.concat(more, ",") .. comma .. sub(text, rest)
end

-- The word of the last error among the events of a text, once one is there: "failed" where it has none that is known.
local function error_in(events)
  local _, behind = find(events, ERROR_EVENT, 1, true)
  return behind and (host_reason(sub(events, behind + 1, behind + 100)) or "failed")
end

-- Lets the pieces of a text pass as they come, until there are no more.
local function look_at_pieces(handle)
  local kept = "\n"
  for chunk in handle:bodyChunks() do
    local events = kept .. chunk:getBytes(0, chunk:length())
    local reason = error_in(events)
    if reason then
      handle:streamInfo():dynamicMetadata():set("brim", "broken", reason)
    end
    kept = sub(events, -#ERROR_EVENT)
  end
end

-- An answer that is not to be passed on as it came.
local function replace_answer(handle, body, text, reason)
  local headers = handle:headers()
  headers:replace("content-type", "application/json")
  if reason then
    local status = HOST_ERRORS[reason]
    headers:replace(":status", format("%d", status))
    headers:replace("x-brim-reason", reason)
    if status == 429 or status == 503 then
      headers:replace("retry-after", format("%d", RETRY_AFTER_S))
    end
    text = format('{"error":"%s","reason":"%s"}', text, reason)
  end
  local length = body:setBytes(text)
  if headers:get("content-length") then
    headers:replace("content-length", format("%d", length))
  end
end

-- An error, or all of a text that does not come in pieces: the one answer of /generate, or the one event over SSE. A host's
-- error comes as an event, and with whatever status: that of an answer that has begun, or the one that Triton 24.10 makes of
-- it after it has let go of it, mostly 400.
local function reword(handle, status, one)
  local body = handle:body()
  local text = body and body:getBytes(0, body:length()) or ""
  local event = match(text, "data: ([^\n]*)\n\n$")
  local said = match(event or text, '^{"error":"(.*)"')
  local reason = said and host_reason(said)
  if reason then
    replace_answer(handle, body, said, reason)
  elseif event and one then
    if said and status == "200" then
      handle:headers():replace(":status", "400")
    end
    if one == "event" and not said then
      body:setBytes("data: " .. event .. "\n\n")
    else
      replace_answer(handle, body, event)
    end
  end
end

-- A field of the protocol buffers that is a block of bytes.
local function block(number, bytes)
  return string.char(number * 8 + BLOCK) .. varint(#bytes) .. bytes
end

-- A request on a stream with its class and its time in it. Of parameters with the same key the last one counts.
local function told_message(message, class_name, own_ms)
  local more = ""
  if class_name then
    more = block(4, block(1, "brim_class") .. block(2, block(3, class_name)))
  end
  if own_ms then
    local own_us = string.char(2 * 8 + VARINT) .. varint(floor(own_ms * 1000))
    more = more .. block(4, block(1, "timeout") .. block(2, own_us))
  end
  return message .. more
end

-- Of a ModelStreamInferResponse, or of its beginning: the model's name, whether it is the last one for its request, and an
-- error's text. Fields: error_message 1, infer_response 2; of the latter model_name 1, parameters 4.
local function read_answer(text)
  local answer, at = {}, 1
  while at < #text and at do
    local tag
    tag, at = read_varint(text, at, #text)
    local length, from = read_varint(text, at, #text)
    local to = math.min(from + length - 1, #text)
    if tag == 10 then
      answer.error = sub(text, from, to)
    elseif tag == 18 then
      -- What is cut off at its end is not looked at.
      pcall(read_fields, text, from, to, function(number, kind, first, last)
        if number == 1 and kind == BLOCK then
          answer.name = sub(text, first, last)
        elseif number == 4 and kind == BLOCK and find(sub(text, first, last), "triton_final_response", 1, true) then
          answer.is_last = false
          read_fields(text, first, last, function(part, form, one, other)
            if part == 2 and form == BLOCK then
              answer.is_last = sub(text, one, other) == "\8\1"
            end
          end)
        end
      end)
    end
    at = from + length
  end
  return answer
end
