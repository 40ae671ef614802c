package myriad

import (
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

// TestGroupPlace has one connection follow another in its place: neither stands for the other.
func TestGroupPlace(t *testing.T) {
	c := new(engine.Conn)
	c.Bind(&engine.Host{}, 0, 2)
	old, now := Ref{c.RefOf(1)}, Ref{c.RefOf(2)}
	var g Group
	holds := func(when string, want Ref) {
		t.Helper()
		if list := g.list(); len(list) != 1 || list[0].ref != want.r || g.Len() != 1 || len(g.latest) != 1 {
			t.Errorf("%s: %v of %d, %d values; want %v alone", when, list, g.Len(), len(g.latest), want)
		}
	}
	g.Add(old)
	holds("added", old)
	g.Add(now)
	holds("followed", now)
	g.Add(old)
	g.Remove(old)
	holds("an old one added and removed", now)
	g.Remove(now)
	if g.Len() != 0 || len(g.latest) != 0 {
		t.Errorf("%d are left, %d values", g.Len(), len(g.latest))
	}
}
