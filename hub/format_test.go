package hub

import (
	"bytes"
	"testing"
)

// Clients whose format has ids must not receive messages that this process cannot give an id.
func TestFormatsWithIDs(t *testing.T) {
	for f := range messageFormat(formatCount) {
		with, without := f.appendMessage(nil, &topic{}, "t", []byte("m"), "7"), f.appendMessage(nil, &topic{}, "t", []byte("m"), "")
		if differs := !bytes.Equal(with, without); differs != f.hasIDs() {
			t.Errorf("format %d: hasIDs is %v, but an id changes the message: %v", f, f.hasIDs(), differs)
		}
	}
}
