package message

import (
	"bytes"
	"testing"
)

// FuzzParse generates messages from any valid template.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "ping", `\\{`, `\\\{seq}`, every,
		`\{number 0-9223372036854775807}`, `\{hex 3}\{random 7}`, `\{timestamp}`,
	} {
		f.Add(text, uint64(1), uint64(2), uint64(3))
	}
	f.Fuzz(func(t *testing.T, text string, seed, connection, message uint64) {
		template, err := Parse(text)
		if err != nil {
			return
		}
		of := ID{seed, connection, message}
		got := template.Append(nil, of)
		if low, high := template.MinLen(), template.MaxLen(); len(got) < low || len(got) > high || high > MaxLen {
			t.Fatalf("%q makes %d bytes, and is to make %d to %d", text, len(got), low, high)
		}
		room := template.Append(make([]byte, 1, 1+template.MaxLen()), of)
		if !bytes.Equal(room[1:], got) {
			t.Fatalf("%q makes %q and then %q", text, got, room[1:])
		}
		if fixed, ok := template.MessageIfConstant(); ok && !bytes.Equal(fixed, got) {
			t.Fatalf("%q makes %q, and always %q", text, got, fixed)
		}
		again, err := Parse(text)
		if err != nil || !bytes.Equal(again.Append(nil, of), got) {
			t.Fatalf("%q makes %q, but parsed again something else, %v", text, got, err)
		}
	})
}
