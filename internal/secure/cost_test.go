package secure

import (
	"crypto/tls"
	"sync"
	"testing"
)

// TestAllocs counts the allocations for a message of 64 bytes.
func TestAllocs(t *testing.T) {
	if poolDropsItems() {
		t.Log("with the race detector sync.Pool forgets at random, and crypto/tls allocates: nothing is looked at")
		return
	}
	for v, version := range versions {
		t.Run(v, func(t *testing.T) {
			server, client := newIdlePair(t, version)
			msg, buf := make([]byte, 64), make([]byte, 4096)
			in := make([]byte, 0, 4096)
			write := testing.AllocsPerRun(1000, func() {
				client.out = client.out[:0]
				if err := client.session.Write(msg); err != nil {
					t.Fatal(err)
				}
			})
			read := testing.AllocsPerRun(1000, func() {
				if n, _, err := server.session.Read(buf, in); n != 64 && err != nil && err != ErrAgain {
					t.Fatal(err)
				}
			})
			if write > 0 || read > 0 {
				t.Errorf("nothing to read: %v, Write: %v allocations, want none", read, write)
			}
			server, client = newIdlePair(t, version)
			both := testing.AllocsPerRun(1000, func() {
				client.out = client.out[:0]
				if err := client.session.Write(msg); err != nil {
					t.Fatal(err)
				}
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
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	pass := func(cut int) {
		client.out = client.out[:0]
		if err := client.session.Write(msg); err != nil {
			t.Fatal(err)
		}
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
	if poolDropsItems() {
		return
	}
	whole := testing.AllocsPerRun(100, func() { pass(0) })
	if cut := testing.AllocsPerRun(100, func() { pass(12_000) }); cut > whole {
		t.Errorf("%v allocations for a record in two pieces, %v for a whole one", cut, whole)
	}
}

func poolDropsItems() bool {
	made := 0
	p := sync.Pool{New: func() any { made++; return new(int) }}
	for range 100 {
		p.Put(p.Get())
	}
	return made > 10
}

func newIdlePair(t testing.TB, version uint16) (server, client *testPeer) {
	serverCfg, clientCfg := newConfigs(version)
	server, client, p := newOpenPair(t, serverCfg, clientCfg)
	for p.moveOnce() {
	}
	server.out, client.out = nil, nil
	return server, client
}
