package secure

import (
	"bytes"
	"crypto/tls"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

var fuzzHello = sync.OnceValue(func() []byte { return recordClientHello(new(testing.T)) })

// FuzzSession feeds arbitrary ciphertext to a server before, during and after its handshake, and to a
// client during and after it. Nothing may panic, hang, or leave a goroutine, and errors are final.
func FuzzSession(f *testing.F) {
	for stage := range byte(10) {
		f.Add(stage, byte(0), []byte("GET / HTTP/1.1\r\n\r\n"))
		f.Add(stage, byte(3), bytes.Clone(fuzzHello()))
		f.Add(stage, byte(200), []byte{20, 3, 3, 0, 1, 1, 23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17})
		f.Add(stage, byte(1), []byte{21, 3, 3, 0, 2, 2, 40})
		f.Add(stage, byte(90), splitMessage(append([]byte{2, 0, 0, 70, 3, 3}, make([]byte, 68)...), 30))
		f.Add(stage, byte(0), []byte{23, 3, 3, 0xff, 0xff})
		f.Add(stage, byte(7), bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 200))
	}
	f.Fuzz(func(t *testing.T, stage, piece byte, data []byte) {
		version := []uint16{tls.VersionTLS12, tls.VersionTLS13}[stage/5%2]
		d, limiter := newPeerAtStage(t, stage%5, version)
		for in := data; len(in) > 0 && d.err == nil; {
			n := min(1+int(piece), len(in))
			d.receiveCiphertext(in[:n])
			d.advanceHandshake()
			in = in[n:]
		}
		d.endInput()
		if len(d.pending) == 0 { // otherwise its input was full and it has not read the end
			testkit.WaitFor(t, "the end", func() bool { d.advanceHandshake(); return d.err != nil })
			was := d.err
			d.endInput()
			if _, _, err := d.session.Read(d.buf, data); err != was {
				t.Errorf("an error that was %v is now %v", was, err)
			}
		}
		d.session.Abort()
		limiter.Wait()
	})
}

func newPeerAtStage(t *testing.T, stage byte, version uint16) (d *testPeer, limiter *HandshakeLimiter) {
	serverCfg, clientCfg := newConfigs(version)
	limiter = NewHandshakeLimiter(1, 1)
	switch stage {
	case 0:
		return newServerPeer(t, serverCfg, limiter), limiter
	case 1:
		serverCfg.MaxVersion = 0
		d = newServerPeer(t, serverCfg, limiter)
		d.receiveCiphertext(fuzzHello())
	case 2:
		d = newClientPeer(t, clientCfg, limiter)
	default:
		server, client := newIdlePair(t, version)
		return map[byte]*testPeer{3: server, 4: client}[stage], limiter
	}
	d.waitForOutput()
	return d, limiter
}
