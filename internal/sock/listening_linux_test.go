package sock

import (
	"slices"
	"testing"
)

// TestListeningPorts finds the port of a listener, and none of a connection.
func TestListeningPorts(t *testing.T) {
	for _, test := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}} {
		at := listenQuietly(t, test.network, test.host, 10)
		dialSome(t, at, 1)
		if got, err := ListeningPorts(at.Port(), at.Port()); err != nil || !slices.Equal(got, []uint16{at.Port()}) {
			t.Errorf("%s: got %v, %v; want the listener's port %d", test.network, got, err, at.Port())
		}
		if got, err := ListeningPorts(at.Port()+1, at.Port()); err != nil || len(got) != 0 {
			t.Errorf("%s: got %v, %v of an empty range", test.network, got, err)
		}
	}
	all, err := ListeningPorts(1, 65535)
	if err != nil || !slices.IsSorted(all) {
		t.Errorf("got %v, %v; want them in order", all, err)
	}
}

func TestPrivateTables(t *testing.T) {
	if err := PrivateTables(); err != nil {
		t.Error(err)
	}
}

func BenchmarkListeningPorts(b *testing.B) {
	for b.Loop() {
		if _, err := ListeningPorts(1, 65535); err != nil {
			b.Fatal(err)
		}
	}
}
