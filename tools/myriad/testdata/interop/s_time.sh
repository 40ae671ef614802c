# Prints OK if both new and resumed connections got answers.
openssl s_time -connect "$1:$2" -CAfile "$3" -www / -time 1 >"$3.time" 2>&1
grep -q rrr "$3.time" && [ "$(grep -c '^[1-9][0-9]* connections in .* bytes read [1-9]' "$3.time")" = 2 ] && echo OK || cat "$3.time"
