-- Texts that come in pieces: what a model that makes them is told, what it says when it refuses, and when one has ended.
--
-- The model's own host bounds how many of its texts are made and wait. It knows a caller's class and deadline by parameters
-- of the request, which is where the gateway puts them: Triton hands no header of an HTTP request on to /generate.
-- HOST_REFUSALS comes from the generated configuration: the word in front of a refusal's text -> the status it has here.

-- Of what came before, this much is kept: an error's beginning may be cut in two.
local ERROR_EVENT = 'data: {"error":"'

-- Of a refusal, or of anything else that the host says, its word.
local function host_reason(text)
  local reason = match(text, "^([%l_]+): ")
  return reason and HOST_REFUSALS[reason] and reason or nil
end

-- The body of a request with its class, where the model knows classes, and its time, in place of one that is not the shortest.
local function told_json(text, class_name, own_ms, asked)
  local more = {}
  if class_name and not asked.class then
    more[1] = format('"brim_class":"%s"', class_name)
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

-- A refusal of the host's comes over SSE as an event, and with whatever status: Triton 24.10 asks an error for its code after
-- it has let go of it, and mostly says 400. It becomes a refusal like the gateway's own.
local function reword_refusal(handle)
  local body = handle:body()
  local text = body and body:getBytes(0, body:length()) or ""
  local said = match(text, '"error":"(.*)"')
  local reason = said and host_reason(said)
  if not reason then
    return
  end
  local headers = handle:headers()
  headers:replace(":status", format("%d", HOST_REFUSALS[reason]))
  headers:replace("x-brim-reason", reason)
  headers:replace("retry-after", format("%d", RETRY_AFTER_S))
  headers:replace("content-type", "application/json")
  local length = body:setBytes(format('{"error":"%s","reason":"%s"}', said, reason))
  if headers:get("content-length") then
    headers:replace("content-length", format("%d", length))
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
