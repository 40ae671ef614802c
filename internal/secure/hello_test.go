package secure

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"strings"
	"testing"
)

// TestNotTLS checks that input other than a ClientHello fails immediately, with a description and without
// a goroutine.
func TestNotTLS(t *testing.T) {
	tests := []struct {
		name, in, want string
		alert          byte // 0 if there is none
	}{
		{"HTTP", "GET / HTTP/1.1\r\n", `the client began with "GET / HT"; expected a TLS handshake record`, 0},
		{"SSL 2", "\x80\x2e\x01\x00\x02", "expected a TLS handshake record", alertProtocolVersion},
		{"zeros", "\x00\x00\x00\x00", "expected a TLS handshake record", 0},
		{"an alert", "\x15\x03\x01\x00\x02\x02\x28", "expected a TLS handshake record", 0},
		{"a version from the future", "\x16\x04\x00", "expected a TLS handshake record", 0},
		{"another message", "\x16\x03\x01\x00\x10\x02", "has type 2; expected a ClientHello", alertUnexpectedMessage},
		{"an empty record", "\x16\x03\x01\x00\x00", "record of 0 bytes", alertUnexpectedMessage},
		{"a large record", "\x16\x03\x01\x40\x01", "record of 16385 bytes", alertRecordOverflow},
		{"a large ClientHello", "\x16\x03\x01\x10\x00\x01\x01\x00\x01", "ClientHello has 65537 bytes; expected at most 65536", 0},
		{"another record within", "\x16\x03\x01\x00\x01\x01\x17\x03\x03\x00\x01", "record of type 23 within", alertUnexpectedMessage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, piece := range []int{1, len(test.in)} {
				g := NewHandshakeLimiter(1, 1)
				d := newServerPeer(t, &tls.Config{}, g)
				for in := []byte(test.in); len(in) > 0 && d.err == nil; in = in[piece:] {
					d.receiveCiphertext(in[:piece])
				}
				if d.err == nil || piece > 1 && !strings.Contains(d.err.Error(), test.want) {
					t.Errorf("got %v, want %q in it", d.err, test.want)
				}
				var alert []byte
				if test.alert != 0 {
					alert = []byte{21, 3, 3, 0, 2, 2, test.alert}
				}
				if !bytes.Equal(d.out, alert) {
					t.Errorf("sent %x, want %x", d.out, alert)
				}
				running, waiting := g.Counts()
				if _, err := d.session.AdvanceHandshake(); err != d.err || running+waiting != 0 {
					t.Errorf("AdvanceHandshake: %v, with %d at the limiter", err, running+waiting)
				}
			}
		})
	}
}

// TestSlowClientHello closes without input (io.EOF), and sends a ClientHello byte by byte: no goroutine starts before
// the last.
func TestSlowClientHello(t *testing.T) {
	silent := newServerPeer(t, &tls.Config{}, NewHandshakeLimiter(1, 1))
	if silent.endInput(); silent.err != io.EOF {
		t.Errorf("%v, want EOF", silent.err)
	}
	hello := recordClientHello(t)
	g := NewHandshakeLimiter(1, 1)
	d := newServerPeer(t, &tls.Config{}, g)
	for i := range hello {
		if running, _ := g.Counts(); running != 0 || d.err != nil {
			t.Fatalf("after %d of %d bytes: %d handshakes run, error %v", i, len(hello), running, d.err)
		}
		d.receiveCiphertext(hello[i : i+1])
	}
	if !d.session.hs.Load().hasRequestedSlot {
		t.Error("with all bytes there is no handshake")
	}
	d.session.Abort()
	g.Wait()
}

// TestEndlessHello exceeds the limit with a ClientHello in single-byte records.
func TestEndlessHello(t *testing.T) {
	d := newServerPeer(t, &tls.Config{}, NewHandshakeLimiter(1, 1))
	message := []byte{1, 0, 0xff, 0xff}
	fed := 0
	for ; d.err == nil; fed++ {
		var b byte
		if fed < len(message) {
			b = message[fed]
		}
		d.receiveCiphertext([]byte{22, 3, 1, 0, 1, b})
	}
	if fed*6 > maxHelloInput+6 || !strings.Contains(d.err.Error(), "no complete ClientHello") {
		t.Errorf("%v after %d bytes", d.err, fed*6)
	}
}

func splitMessage(message []byte, n int) (out []byte) {
	for len(message) > 0 {
		k := min(n, len(message))
		out = append(out, 22, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(k))
		out = append(out, message[:k]...)
		message = message[k:]
	}
	return out
}

func joinRecords(t *testing.T, in []byte) (message []byte, largest int) {
	for len(in) > 0 {
		n := recordLenOrHeaderLen(in)
		if len(in) < n || in[0] != 22 || in[1] != 3 || in[2] != 1 {
			t.Fatalf("no record: %x", in)
		}
		message = append(message, in[headerLen:n]...)
		largest = max(largest, n)
		in = in[n:]
	}
	return message, largest
}

// TestSplitRecords splits ClientHellos of many sizes in records of many sizes.
func TestSplitRecords(t *testing.T) {
	for _, size := range []int{1, 40, 570, 571, 572, 1500, 2284, 2285, 16000, 40000} {
		body := randomBytes(uint64(size), size)
		message := append([]byte{1, 0, byte(size >> 8), byte(size)}, body...)
		for _, n := range []int{3, 100, 1400, maxPlain} {
			if in := splitMessage(message, n); len(in) < InputPauseSize {
				in = append(in, 20, 3, 3, 0, 1, 1) // what follows must not change
				var h helloScanner
				whole, err := h.scanHello(in)
				if !whole || err != nil {
					t.Fatalf("%d by %d: whole is %v, %v", size, n, whole, err)
				}
				out := h.splitHelloIntoSmallRecords(in)
				end := len(out) - 6
				if !bytes.Equal(out[end:], in[len(in)-6:]) {
					t.Fatalf("%d by %d: what follows is %x", size, n, out[end:])
				}
				got, largest := joinRecords(t, out[:end])
				if !bytes.Equal(got, message) || largest > headerLen+maxSmallBody {
					t.Errorf("%d by %d: %d bytes in records of up to %d", size, n, len(got), largest)
				}
			}
		}
	}
}

// TestSplitRecordsKeepsNextMessage checks that records remain if another message begins in the last one.
func TestSplitRecordsKeepsNextMessage(t *testing.T) {
	in := splitMessage([]byte{1, 0, 0, 2, 9, 9, 14, 0, 0, 0}, maxPlain)
	var h helloScanner
	whole, err := h.scanHello(in)
	if out := h.splitHelloIntoSmallRecords(in); !whole || err != nil || !bytes.Equal(out, in) {
		t.Errorf("whole is %v, %v; %x became %x", whole, err, in, out)
	}
}
