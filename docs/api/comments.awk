# For Doxygen: a header's comments, which are `//` in this house, as documentation.
#   A comment above something becomes ///, one behind something ///<, with the lines that go on
#   below it. A file's first comment is about the file. Lines that are indented by two or more stay
#   as they are. Rulers (// ---) and what closes a namespace or an #if is no documentation.
# C structs and enums lose their typedef, which would be documented a second time.

# Between double quotes Doxygen takes everything as it is.
function escaped(text,    parts, n, i, result) {
  n = split(text, parts, "\"")
  for (i = 1; i <= n; ++i) {
    if (i % 2) gsub(/[\\@<>*#%]/, "\\\\&", parts[i])
    result = result (i > 1 ? "\"" : "") parts[i]
  }
  return result
}

function close_code() {
  if (code) print margin "/// @endcode"
  code = 0
}

/^typedef (struct|enum) [a-z_]+ \{/ { sub(/^typedef /, ""); in_typedef = 1 }
in_typedef && /^} [a-z_]+;/ { sub(/^} [a-z_]+/, "}"); in_typedef = 0 }

{
  at = match($0, /(^|[ \t])\/\/( |$)/)
  if (at && substr($0, at, 1) != "/") ++at
  before = at ? substr($0, 1, at - 1) : ""
  text = at ? substr($0, at + 3) : ""
  alone = at && before ~ /^[ \t]*$/
}

FNR == 1 && alone { print "/// @file" }

!at || text ~ /^---/ || before ~ /^ *(}|#|class [A-Za-z]+;|struct [A-Za-z]+;)/ {
  close_code()
  behind = 0
  print
  next
}

alone && behind && at == behind {
  print before "///< " escaped(text)
  next
}

alone {
  behind = 0
  margin = before
  if (text ~ /^  /) {
    if (!code) print before "/// @code{.txt}"
    code = 1
    print before "/// " text
    next
  }
  close_code()
  print before "/// " escaped(text)
  next
}

{
  close_code()
  behind = at
  print before "///< " escaped(text)
}
