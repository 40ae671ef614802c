package secure

import (
	"crypto/tls"
	"testing"
	"testing/synctest"
	"time"
)

func newStallingPeers(t *testing.T, places int) (newPeer func() *testPeer, g *HandshakeLimiter) {
	hello := recordClientHello(t)
	serverCfg, _ := newConfigs(tls.VersionTLS13)
	g = NewHandshakeLimiter(places, 1)
	return func() *testPeer {
		d := newServerPeer(t, serverCfg, g)
		d.receiveCiphertext(hello)
		return d
	}, g
}

// sleepAndListStates sleeps, and reports for each peer whether it was evicted (x), has answered (a), or
// waits (w).
func sleepAndListStates(d time.Duration, all ...*testPeer) (got string) {
	time.Sleep(d)
	synctest.Wait()
	for _, d := range all {
		d.advanceHandshake()
		switch {
		case d.err == errStalled:
			got += "x"
		case d.err != nil:
			got += d.err.Error()
		case len(d.out) > 0:
			got += "a"
		default:
			got += "w"
		}
	}
	return got
}

// TestStalledGiveWay checks that a stalled handshake keeps its slot for a second while others are queued,
// and longer otherwise.
func TestStalledGiveWay(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		come, g := newStallingPeers(t, 2)
		var all []*testPeer
		check := func(what string, after time.Duration, want string) {
			t.Helper()
			if got := sleepAndListStates(after, all...); got != want {
				t.Errorf("%s: got %s, want %s", what, got, want)
			}
		}
		all = append(all, come())
		check("one", 300*ms, "a")
		all = append(all, come())
		check("two", 200*ms, "aa")
		all = append(all, come())
		check("the third, half a second after the first", 499*ms, "aaw")
		check("a second after the first", 1*ms, "xaa")
		all = append(all, come())
		check("the fourth, less than a second after the second", 299*ms, "xaaw")
		check("a second after the second", 1*ms, "xxaa")
		check("nobody waits", time.Hour, "xxaa")
		all = append(all, come())
		check("the fifth", 0, "xxxaa")
		all = append(all, come())
		check("the sixth", 0, "xxxxaa")
		check("nobody waits", time.Hour, "xxxxaa")
		all = append(all, come(), come(), come())
		check("three, for two places", 0, "xxxxxxaaw")
		all[8].session.Abort() // no longer queued
		check("two that have just come", 2*time.Second, "xxxxxxaa"+"use of closed network connection")
		for _, d := range all {
			d.session.Abort()
		}
		g.Wait()
		if running, waiting := g.Counts(); running+waiting+g.stalled.Len()+g.evicting != 0 {
			t.Errorf("at the end %d run, %d wait, %d have stalled, %d leave", running, waiting, g.stalled.Len(), g.evicting)
		}
	})
}

// TestStalledGoesOn checks that a stall without queued handshakes does no harm, and that a client's
// handshake, which waits for a server, is never evicted.
func TestStalledGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, clients := NewHandshakeLimiter(1, 1), NewHandshakeLimiter(1, 1)
		serverCfg, clientCfg := newConfigs(tls.VersionTLS13)
		server, client := newServerPeer(t, serverCfg, g), newClientPeer(t, clientCfg, clients)
		sleepAndListStates(0, client)
		sleepAndListStates(0, client)
		other := newClientPeer(t, clientCfg, clients)
		if got := sleepAndListStates(time.Hour, other, client); got != "wa" {
			t.Errorf("a client that waits and one that has called a server: %s, want wa", got)
		}
		server.receiveCiphertext(client.takeOutput())
		sleepAndListStates(time.Hour, server)
		client.receiveCiphertext(server.takeOutput())
		sleepAndListStates(0, client)
		server.receiveCiphertext(client.takeOutput())
		sleepAndListStates(0, server)
		if !client.open || !server.open {
			t.Errorf("client open %v, %v; server open %v, %v", client.open, client.err, server.open, server.err)
		}
		for _, d := range []*testPeer{server, client, other} {
			d.session.Abort()
		}
		g.Wait()
		clients.Wait()
	})
}
