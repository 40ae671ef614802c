package secure

import (
	"crypto/tls"
	"testing"
	"testing/synctest"
	"time"
)

// stallers makes sides at one gate whose clients send a ClientHello and no more.
func stallers(t *testing.T, places int) (come func() *side, g *Gate) {
	hello := flight(t)
	serverCfg, _ := configs(tls.VersionTLS13)
	g = NewGate(places, 1)
	return func() *side {
		d := serverSide(t, serverCfg, g)
		d.give(hello)
		return d
	}, g
}

// passed lets a time pass, and says who has lost its place (x), has an answer
// (a), or waits (w).
func passed(d time.Duration, all ...*side) (got string) {
	time.Sleep(d)
	synctest.Wait()
	for _, d := range all {
		d.poll()
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

// TestStalledGiveWay: while others wait for a place, a client that lets the
// handshake wait keeps it for a second, and longer if nobody waits.
func TestStalledGiveWay(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		come, g := stallers(t, 2)
		var all []*side
		check := func(what string, after time.Duration, want string) {
			t.Helper()
			if got := passed(after, all...); got != want {
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
		all[8].s.Abort() // no longer waits
		check("two that have just come", 2*time.Second, "xxxxxxaa"+"use of closed network connection")
		for _, d := range all {
			d.s.Abort()
		}
		g.Wait()
		if running, waiting := g.Count(); running+waiting+g.stalled.Len()+g.leaving != 0 {
			t.Errorf("at the end %d run, %d wait, %d have stalled, %d leave", running, waiting, g.stalled.Len(), g.leaving)
		}
	})
}

// TestStalledTogether: of many whose second is over at one moment only so many
// give way as others wait.
func TestStalledTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, more = 50, 7
		come, g := stallers(t, places)
		var all []*side
		for range places + more {
			all = append(all, come())
		}
		passed(999 * time.Millisecond)
		count := func() (out int) {
			for _, d := range passed(0, all...) {
				if d == 'x' {
					out++
				}
			}
			return out
		}
		if n := count(); n != 0 {
			t.Errorf("%d have given way within a second", n)
		}
		if passed(time.Millisecond); count() != more {
			t.Errorf("%d have given way to %d that waited", count(), more)
		}
		if _, waiting := g.Count(); waiting != 0 {
			t.Errorf("%d wait", waiting)
		}
		for _, d := range all {
			d.s.Abort()
		}
		g.Wait()
	})
}

// TestStalledGoesOn: who stalls while nobody waits has lost nothing, and a client's
// handshake, which waits for a server, gives way to nobody.
func TestStalledGoesOn(t *testing.T) {
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		g, clients := NewGate(1, 1), NewGate(1, 1)
		serverCfg, clientCfg := configs(tls.VersionTLS13)
		clientCfg.Time = func() time.Time { return now }
		server, client := serverSide(t, serverCfg, g), clientSide(t, clientCfg, clients)
		passed(0, client)
		passed(0, client)
		other := clientSide(t, clientCfg, clients)
		if got := passed(time.Hour, other, client); got != "wa" {
			t.Errorf("a client that waits and one that has called a server: %s, want wa", got)
		}
		server.give(client.collect())
		passed(time.Hour, server)
		client.give(server.collect())
		passed(0, client)
		server.give(client.collect())
		passed(0, server)
		if !client.open || !server.open {
			t.Errorf("client open %v, %v; server open %v, %v", client.open, client.err, server.open, server.err)
		}
		for _, d := range []*side{server, client, other} {
			d.s.Abort()
		}
		g.Wait()
		clients.Wait()
	})
}
