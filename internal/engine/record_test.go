package engine

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

func testRecord() Record {
	return Record{
		Peer: netip.MustParseAddrPort("[2001:db8::1]:7"), Listener: 3, Silent: true, InputHeld: true, HasConnHandler: true, SilentFor: time.Hour, InputAge: time.Second,
		Unanswered: 2, Timer: time.Minute, Deadline: 1, Missed: 5, RefusedBytes: 4, Input: []byte("half"), Output: []byte("unsent"), State: []byte("s"), Layer: []byte("layer"),
	}
}

func TestRecord(t *testing.T) {
	want := testRecord()
	p := want.AppendTo(nil)
	got, rest, err := ParseRecord(append(p, "next"...))
	if err != nil || !reflect.DeepEqual(got, want) || string(rest) != "next" {
		t.Errorf("got %+v, rest %q, %v; want %+v", got, rest, err, want)
	}
	for n := range p {
		if _, _, err := ParseRecord(p[:n]); err == nil {
			t.Errorf("%d of %d bytes are taken for a record", n, len(p))
		}
	}
}

// FuzzRecord parses arbitrary bytes. Accepted records must encode to the same.
func FuzzRecord(f *testing.F) {
	r := testRecord()
	f.Add(r.AppendTo(nil))
	f.Add((&Record{Listener: -1, Dialled: true, Paused: true}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		r, rest, err := ParseRecord(p)
		if err != nil {
			return
		}
		again, more, err := ParseRecord(append(r.AppendTo(nil), rest...))
		if err != nil || !reflect.DeepEqual(again, r) || !bytes.Equal(more, rest) {
			t.Errorf("read again: %+v, %v; want %+v", again, err, r)
		}
	})
}
