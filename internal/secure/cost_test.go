package secure

import (
	"crypto/tls"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestAllocs counts the allocations for a message of 64 bytes.
func TestAllocs(t *testing.T) {
	if testkit.RaceEnabled { // then sync.Pool drops items at random, and crypto/tls allocates
		return
	}
	for v, version := range versions {
		t.Run(v, func(t *testing.T) {
			server, client := newIdlePair(t, version)
			msg, buf := make([]byte, 64), make([]byte, 4096)
			both := testing.AllocsPerRun(1000, func() {
				client.out = client.out[:0]
				testkit.RequireNoError(t, client.session.Write(msg))
				if n, used, err := server.session.Read(buf, client.out); n != 64 || used != len(client.out) || err != nil {
					t.Fatal(n, used, err)
				}
				if n, _, err := server.session.Read(buf, nil); n != 0 || err != ErrAgain {
					t.Fatal(n, err)
				}
			})
			if both > 1 { // crypto/tls allocates a reader of 24 bytes for each record
				t.Errorf("Write and Read: %v allocations, want at most 1", both)
			}
		})
	}
}

// TestPartialRecordMemory checks what is kept of an incomplete record: a small slice for a small part, a
// pooled buffer for a large one, and nothing after a complete record.
func TestPartialRecordMemory(t *testing.T) {
	server, client := newIdlePair(t, tls.VersionTLS13)
	msg, buf := make([]byte, 16<<10), make([]byte, 64<<10)
	read := func(in []byte) {
		for {
			_, used, err := server.session.Read(buf, in)
			in = in[used:]
			if err == ErrAgain {
				return
			}
			testkit.RequireNoError(t, err)
		}
	}
	pass := func(cut int) {
		client.out = client.out[:0]
		testkit.RequireNoError(t, client.session.Write(msg))
		read(client.out[:cut])
		if n := cap(server.session.partial); cut == 100 && n > 256 || cut > 10_000 && n != maxRecord {
			t.Errorf("%d bytes of room for %d", n, cut)
		}
		read(client.out[cut:])
		if server.session.partial != nil {
			t.Errorf("%d bytes of room for nothing", cap(server.session.partial))
		}
	}
	for range 30 { // until records have their full size
		pass(0)
	}
	pass(100)
	pass(12_000)
	if testkit.RaceEnabled {
		return
	}
	whole := testing.AllocsPerRun(100, func() { pass(0) })
	if cut := testing.AllocsPerRun(100, func() { pass(12_000) }); cut > whole {
		t.Errorf("%v allocations for a record in two pieces, %v for a whole one", cut, whole)
	}
}

func newIdlePair(t testing.TB, version uint16) (server, client *testPeer) {
	serverCfg, clientCfg := newConfigs(version)
	server, client, p := newOpenPair(t, serverCfg, clientCfg)
	for p.moveOnce() {
	}
	server.out, client.out = nil, nil
	return server, client
}
