package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// A WebSocket and a stream of events keep their subscription through an upgrade of a hub.
func TestUpgradeHubFront(t *testing.T) {
	s := upgradable(t, "", "hub")
	stream, socket := dial(t, s.addr), dial(t, s.addr)
	fmt.Fprint(stream, "GET /events?topic=x HTTP/1.1\r\nHost: localhost\r\n\r\n")
	hear(t, stream, "retry: ")
	fmt.Fprint(socket, "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	hear(t, socket, "\r\n\r\n")
	say := func(request string) {
		_, err := socket.Write(append([]byte{0x81, 0x80 | byte(len(request)), 0, 0, 0, 0}, request...)) // masked by nothing
		must(t, err)
	}
	say(`{"op":"subscribe","topic":"x"}`)
	hear(t, socket, `"op":"subscribed","topic":"x","count":1}`)
	publish := func() {
		t.Helper()
		say(`{"op":"publish","topic":"x","data":"1"}`)
		hear(t, socket, `"receivers":2}`)
		hear(t, stream, `"data":"1"}`)
	}
	publish()
	next := s.upgrade(t, 2)
	publish()
	s.endNext(t, next)
}

// A load of WebSockets that publish and subscribe all the time misses no message in an upgrade, gets
// none twice, and keeps its connections.
func TestUpgradeHubLoad(t *testing.T) {
	s := upgradable(t, "", "hub")
	load := process(t, "load", "--pubsub", "ws", "-c", "20", "--topics", "4", "--publishers", "2",
		"--size", "64", "--rate", "100", "--duration", "3s", s.addr)
	said := &lockedBuffer{}
	load.Stdout, load.Stderr = said, said
	must(t, load.Start())
	over := make(chan error, 1)
	go func() { over <- load.Wait() }()
	published := func() (n int) {
		_, text := get(t, s.admin+"/hub")
		_, text, _ = strings.Cut(text, `"Published":`)
		_, _ = fmt.Sscanf(text, "%d", &n)
		return n
	}
	testkit.WaitFor(t, "nothing is published", func() bool { return published() >= 20 })
	next := s.upgrade(t, 22)
	if err := testkit.Receive(t, over, "the end of the load"); err != nil || !strings.Contains(said.String(), "each compared, in order") {
		t.Errorf("the load: %v\n%s", err, said)
	}
	s.endNext(t, next)
}

// hear reads up to a text.
func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	var got []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(got), want); got = append(got, b...) {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("heard %q, then %v; want %q", got, err, want)
		}
	}
}
