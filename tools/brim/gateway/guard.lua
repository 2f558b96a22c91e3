-- Stops, before Triton reads them, the inference requests that Triton lets pass and that then end the server or fail the
-- neighbours in a batch: sizes that do not agree with the bytes, BYTES lengths that lie, huge dimensions, deep nesting,
-- compressed bodies. Whatever else is wrong with a request is left to Triton, which answers the one caller.
--
-- The JSON reader may be laxer than Triton's, never differently aligned: what both take for JSON, both cut in the same
-- places. Hence escapes in keys and keys that come twice, which parsers read differently, are refused.
-- LIMITS comes from the generated configuration, in front of this text.

local byte, find, format, match, sub = string.byte, string.find, string.format, string.match, string.sub
local floor = math.floor

local ITEM_BYTES = {
  BOOL = 1, UINT8 = 1, INT8 = 1, UINT16 = 2, INT16 = 2, FP16 = 2, BF16 = 2,
  UINT32 = 4, INT32 = 4, FP32 = 4, UINT64 = 8, INT64 = 8, FP64 = 8,
}
local QUOTE, COMMA, COLON, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = byte('",:[]{}', 1, 7)
local VARINT, FIXED64, BLOCK, FIXED32 = 0, 1, 2, 5

local function refuse(text, ...)
  error({ text = select("#", ...) > 0 and format(text, ...) or text }, 0)
end

-- What a message may repeat of a name that the caller chose.
local function shown(name)
  return name and #name <= 100 and match(name, "^[%w_%-%.:/]+$") or "?"
end

----- sizes ---------------------------------------------------------------------------------------------------------------

local function elements(name, shape, most)
  local product = 1
  if #shape > LIMITS.rank then
    refuse("input %s has %d dimensions, at most %d are read", shown(name), #shape, LIMITS.rank)
  end
  for place, size in ipairs(shape) do
    if size < (place == 1 and 1 or 0) or size > LIMITS.largest_size then
      refuse("dimension %d of input %s is %.0f, expected %d to %d", place, shown(name), size,
        place == 1 and 1 or 0, LIMITS.largest_size)
    end
    product = product * size
  end
  if product > most then
    refuse("input %s has %.0f elements by its shape, more than its message has bytes", shown(name), product)
  end
  return product
end

local function little_endian(text, at)
  local a, b, c, d = byte(text, at, at + 3)
  return a + b * 256 + c * 65536 + d * 16777216
end

-- BYTES: every element stands behind its length in 4 bytes.
local function check_frames(text, from, to, count, name)
  local at, found = from, 0
  while at <= to do
    if at + 3 > to then
      refuse("input %s ends inside the length of element %d", shown(name), found + 1)
    end
    local length = little_endian(text, at)
    at = at + 4 + length
    found = found + 1
    if at > to + 1 then
      refuse("element %d of input %s is %.0f bytes long by its length, and %.0f are there", found, shown(name), length,
        to + 1 - (at - length))
    end
  end
  if found ~= count then
    refuse("input %s carries %d elements, its shape has %.0f", shown(name), found, count)
  end
end

local function check_tensor(text, from, to, tensor)
  local count = elements(tensor.name, tensor.shape, #text)
  local item = ITEM_BYTES[tensor.datatype]
  if item and count * item ~= to - from + 1 then
    refuse("input %s carries %d bytes, its shape and type make %.0f", shown(tensor.name), to - from + 1, count * item)
  elseif tensor.datatype == "BYTES" then
    check_frames(text, from, to, count, tensor.name)
  end
end

----- JSON ----------------------------------------------------------------------------------------------------------------

local function past_space(text, at)
  return find(text, "[^ \t\r\n]", at) or #text + 1
end

-- From an opening quote: what stands between the quotes, and the place behind them.
local function read_string(text, at)
  local from = at + 1
  while true do
    local stop = find(text, '["\\]', from)
    if not stop then
      refuse("the JSON ends inside a string")
    end
    if byte(text, stop) == QUOTE then
      return sub(text, at + 1, stop - 1), stop + 1
    end
    from = stop + 2
  end
end

local function past_value(text, at, depth)
  local first = byte(text, at)
  if first == QUOTE then
    local _, after = read_string(text, at)
    return after
  end
  if first ~= OPEN_LIST and first ~= OPEN_OBJECT then
    return find(text, "[,%]} \t\r\n]", at) or #text + 1
  end
  local outer = depth
  repeat
    local place = find(text, '["%[%]{}]', at)
    if not place then
      refuse("the JSON ends inside a list or an object")
    end
    local letter = byte(text, place)
    if letter == QUOTE then
      local _, after = read_string(text, place)
      at = after
    else
      depth = depth + ((letter == OPEN_LIST or letter == OPEN_OBJECT) and 1 or -1)
      if depth > LIMITS.nesting then
        refuse("the JSON is nested more than %d deep", LIMITS.nesting)
      end
      at = place + 1
    end
  until depth == outer
  return at
end

-- Calls member(key, place of the value) for each, which returns the place behind the value.
local function read_object(text, at, member)
  local seen, count = {}, 0
  at = past_space(text, at + 1)
  if byte(text, at) == CLOSE_OBJECT then
    return at + 1
  end
  while true do
    if byte(text, at) ~= QUOTE then
      refuse("the JSON has something else where a key should be")
    end
    local key
    key, at = read_string(text, at)
    if find(key, "\\", 1, true) then
      refuse("a key of the JSON has an escape in it")
    end
    if seen[key] then
      refuse("the key %s comes twice in one object", shown(key))
    end
    seen[key], count = true, count + 1
    if count > LIMITS.keys then
      refuse("an object of the JSON has more than %d keys", LIMITS.keys)
    end
    at = past_space(text, at)
    if byte(text, at) ~= COLON then
      refuse("the JSON has no colon behind a key")
    end
    at = past_space(text, member(key, past_space(text, at + 1)))
    local letter = byte(text, at)
    if letter == CLOSE_OBJECT then
      return at + 1
    elseif letter ~= COMMA then
      refuse("the JSON has no comma between two members")
    end
    at = past_space(text, at + 1)
  end
end

local function read_list(text, at, item)
  at = past_space(text, at + 1)
  if byte(text, at) == CLOSE_LIST then
    return at + 1
  end
  while true do
    at = past_space(text, item(at))
    local letter = byte(text, at)
    if letter == CLOSE_LIST then
      return at + 1
    elseif letter ~= COMMA then
      refuse("the JSON has no comma between two items")
    end
    at = past_space(text, at + 1)
  end
end

local function expect(text, at, letter, what)
  if byte(text, at) ~= letter then
    refuse("%s", what)
  end
end

local function read_number(text, at, what)
  local number = match(text, "^%-?%d+", at)
  if not number or not find(text, "^[,%]} \t\r\n]", at + #number) then
    refuse("%s is no whole number", what)
  end
  return tonumber(number), at + #number
end

local function read_parameters(text, at, tensor)
  expect(text, at, OPEN_OBJECT, "the parameters of an input are no object")
  return read_object(text, at, function(key, place)
    if find(key, "shared_memory", 1, true) then
      refuse("inputs in shared memory are not taken from callers of the gateway")
    elseif key == "binary_data_size" then
      tensor.bytes, place = read_number(text, place, "binary_data_size")
      return place
    end
    return past_value(text, place, 4)
  end)
end

local function read_tensor(text, at)
  local tensor = {}
  expect(text, at, OPEN_OBJECT, "an input is no object")
  at = read_object(text, at, function(key, place)
    if (key == "name" or key == "datatype") and byte(text, place) == QUOTE then
      tensor[key], place = read_string(text, place)
      return place
    elseif key == "shape" then
      local shape = {}
      expect(text, place, OPEN_LIST, "a shape is no list")
      tensor.shape = shape
      return read_list(text, place, function(inside)
        shape[#shape + 1], inside = read_number(text, inside, "a dimension")
        return inside
      end)
    elseif key == "parameters" then
      return read_parameters(text, place, tensor)
    end
    return past_value(text, place, 3)
  end)
  if not tensor.shape then
    refuse("input %s has no shape", shown(tensor.name))
  end
  return tensor, at
end

-- Tensors, and what the request asks for itself: its timeout in microseconds, and its priority.
local function read_tensors(text)
  local tensors, asked = {}, {}
  local at = past_space(text, 1)
  expect(text, at, OPEN_OBJECT, "the body does not begin with a JSON object")
  at = read_object(text, at, function(key, place)
    if key == "parameters" and byte(text, place) == OPEN_OBJECT then
      return read_object(text, place, function(name, inside)
        if name == "timeout" or name == "priority" then
          asked[name], inside = read_number(text, inside, "the " .. name)
          return inside
        end
        return past_value(text, inside, 2)
      end)
    elseif key ~= "inputs" then
      return past_value(text, place, 1)
    end
    expect(text, place, OPEN_LIST, "inputs is no list")
    return read_list(text, place, function(inside)
      if #tensors == LIMITS.inputs then
        refuse("the request has more than %d inputs", LIMITS.inputs)
      end
      tensors[#tensors + 1], inside = read_tensor(text, inside)
      return inside
    end)
  end)
  if past_space(text, at) <= #text then
    refuse("something stands behind the JSON object")
  end
  return tensors, asked
end

-- Every check returns what the request asks for itself, and the model where only the message names it.
local function check_infer(text, header_length)
  local head = text
  if header_length then
    local length = match(header_length, "^%d+$") and tonumber(header_length)
    if not length or length > #text then
      refuse("Inference-Header-Content-Length is not between 0 and the %d bytes of the body", #text)
    elseif length == 0 then
      return {} -- the whole body is one tensor, whose sizes Triton works out from its length
    end
    head = sub(text, 1, length)
  end
  local at = #head + 1
  local tensors, asked = read_tensors(head)
  for _, tensor in ipairs(tensors) do
    if tensor.bytes then
      if tensor.bytes < 0 or at + tensor.bytes - 1 > #text then
        refuse("binary_data_size of input %s is %.0f, and %d bytes are left", shown(tensor.name), tensor.bytes,
          #text - at + 1)
      end
      check_tensor(text, at, at + tensor.bytes - 1, tensor)
      at = at + tensor.bytes
    else
      elements(tensor.name, tensor.shape, #head)
    end
  end
  if at <= #text then
    refuse("%d bytes stand behind the last input", #text - at + 1)
  end
  return asked
end

-- For /generate: any object, not too deep. Its keys are inputs or parameters of the request, also those in a nested object
-- of that name. What it asks for itself has its place beside it, since the gateway may have to say it for the model.
local function check_generate(text)
  local asked = {}
  local function own(depth)
    return function(key, place)
      if key == "timeout" or key == "priority" then
        asked[key .. "_at"] = place
        asked[key], place = read_number(text, place, "the " .. key)
        return place
      elseif key == "brim_class" then
        expect(text, place, QUOTE, "brim_class is no text")
        asked.class, place = read_string(text, place)
        return place
      elseif find(key, "^brim_") then
        refuse("%s is for the gateway's own use", shown(key))
      elseif key == "stream" then
        asked.stream = sub(text, place, place + 3) == "true"
      elseif key == "parameters" and depth == 1 and byte(text, place) == OPEN_OBJECT then
        return read_object(text, place, own(2))
      end
      return past_value(text, place, depth)
    end
  end
  local at = past_space(text, 1)
  expect(text, at, OPEN_OBJECT, "the body does not begin with a JSON object")
  at = read_object(text, at, own(1))
  if past_space(text, at) <= #text then
    refuse("something stands behind the JSON object")
  end
  return asked
end

----- protocol buffers ----------------------------------------------------------------------------------------------------

local function read_varint(text, at, last)
  local value, scale = 0, 1
  for _ = 1, 10 do
    local part = at <= last and byte(text, at)
    if not part then
      break
    end
    value = value + part % 128 * scale
    scale = scale * 128
    at = at + 1
    if part < 128 then
      return value, at
    end
  end
  refuse("the message is cut off, or has a number of more than 10 bytes")
end

-- The other way.
local function varint(value)
  local bytes = {}
  repeat
    local rest = floor(value / 128)
    bytes[#bytes + 1] = string.char(value % 128 + (rest > 0 and 128 or 0))
    value = rest
  until value == 0
  return table.concat(bytes)
end

-- Calls field(number, kind, first byte, last byte, value of a varint) for each.
local function read_fields(text, at, last, field)
  while at <= last do
    local tag
    tag, at = read_varint(text, at, last)
    local number, kind = floor(tag / 8), tag % 8
    local from, value, after = at, nil, nil
    if kind == VARINT then
      value, after = read_varint(text, at, last)
    elseif kind == BLOCK then
      local length
      length, from = read_varint(text, at, last)
      after = from + length
    elseif kind == FIXED64 or kind == FIXED32 then
      after = at + (kind == FIXED64 and 8 or 4)
    else
      refuse("the message has a group in it, which no field of KServe v2 is")
    end
    if number == 0 or after > last + 1 then
      refuse("the message is no protocol buffer, or is cut off")
    end
    field(number, kind, from, after - 1, value)
    at = after
  end
end

-- Triton quotes such a text in an error, which over gRPC is a header. One that is too long for those who pass it on ends the
-- connection that all callers share.
local function check_quoted(from, to)
  if to - from + 1 > LIMITS.quoted_bytes then
    refuse("a name, id or type of %d bytes is more than the %d that are taken", to - from + 1, LIMITS.quoted_bytes)
  end
end

local function check_output(text, from, to)
  read_fields(text, from, to, function(number, kind, first, last)
    if number == 1 and kind == BLOCK then
      check_quoted(first, last)
    end
  end)
end

local function check_parameter(text, from, to)
  read_fields(text, from, to, function(number, kind, first, last)
    if number == 1 and kind == BLOCK and find(sub(text, first, last), "shared_memory", 1, true) then
      refuse("inputs in shared memory are not taken from callers of the gateway")
    end
  end)
end

-- Field numbers of InferInputTensor: name 1, datatype 2, shape 3, parameters 4.
local function read_input(text, from, to)
  local tensor = { shape = {} }
  local shape = tensor.shape
  read_fields(text, from, to, function(number, kind, first, last, value)
    if number <= 2 and kind == BLOCK then
      check_quoted(first, last)
    end
    if number == 1 and kind == BLOCK then
      tensor.name = sub(text, first, last)
    elseif number == 2 and kind == BLOCK then
      tensor.datatype = sub(text, first, last)
    elseif number == 3 and kind == VARINT then
      shape[#shape + 1] = value
    elseif number == 3 and kind == BLOCK then
      while first <= last do
        shape[#shape + 1], first = read_varint(text, first, last)
      end
    elseif number == 4 and kind == BLOCK then
      check_parameter(text, first, last)
    end
    if #shape > LIMITS.rank then
      refuse("input %s has more than %d dimensions", shown(tensor.name), LIMITS.rank)
    end
  end)
  return tensor
end

-- An entry of the request's parameters: key 1, value 2, of which int64_param 2, string_param 3 and uint64_param 5.
local function read_asked(text, from, to, asked)
  local key, found, named
  read_fields(text, from, to, function(number, kind, first, last)
    if number == 1 and kind == BLOCK then
      check_quoted(first, last)
      key = sub(text, first, last)
    elseif number == 2 and kind == BLOCK then
      read_fields(text, first, last, function(choice, form, at, behind, value)
        if form == VARINT and (choice == 2 or choice == 5) then
          found = value
        elseif form == BLOCK and choice == 3 then
          named = sub(text, at, behind)
        end
      end)
    end
  end)
  if key == "timeout" or key == "priority" then
    asked[key] = found
  elseif key == "brim_class" then
    asked.class = named
  elseif key and find(key, "^brim_") then
    refuse("%s is for the gateway's own use", shown(key))
  end
end

-- Questions about the server and its models, in which nothing but names stands.
local function check_read(text)
  check_quoted(6, #text)
  return {}
end

-- Field numbers of ModelInferRequest: model_name 1, model_version 2, id 3, parameters 4, inputs 5, outputs 6,
-- raw_input_contents 7.
local function check_grpc(text)
  if #text < 5 then
    refuse("the call carries no message")
  end
  local compressed, a, b, c, d = byte(text, 1, 5)
  if compressed ~= 0 then
    refuse("compressed messages are not taken: send it as it is")
  end
  if a * 16777216 + b * 65536 + c * 256 + d ~= #text - 5 then
    refuse("the call does not carry exactly one message")
  end
  local tensors, contents, asked, model = {}, {}, {}, ""
  read_fields(text, 6, #text, function(number, kind, from, to)
    if number <= 3 and kind == BLOCK then
      check_quoted(from, to)
    end
    if number == 1 and kind == BLOCK then
      model = sub(text, from, to)
    elseif number == 4 and kind == BLOCK then
      read_asked(text, from, to, asked)
    elseif number == 5 and kind == BLOCK then
      tensors[#tensors + 1] = read_input(text, from, to)
    elseif number == 6 and kind == BLOCK then
      check_output(text, from, to)
    elseif number == 7 and kind == BLOCK then
      contents[#contents + 1] = { from, to }
    end
    if #tensors > LIMITS.inputs or #contents > LIMITS.inputs then
      refuse("the request has more than %d inputs", LIMITS.inputs)
    end
  end)
  if #contents > 0 and #contents ~= #tensors then
    refuse("the message has %d inputs and %d raw contents", #tensors, #contents)
  end
  for number, tensor in ipairs(tensors) do
    local place = contents[number]
    if place then
      check_tensor(text, place[1], place[2], tensor)
    else
      elements(tensor.name, tensor.shape, #text)
    end
  end
  return asked, model
end
