package engine

import "testing"

func TestBroadcastTracker(t *testing.T) {
	for _, c := range []struct {
		name            string
		size, want, max int
	}{
		{"count", 1, MaxBroadcasts, 16 << 20},
		{"empty", 0, MaxBroadcasts, 10},
		{"bytes", 1000, 10, 10_000},
		{"one larger than the bound", 1000, 1, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []*Broadcast
			var b BroadcastTracker
			limits := Limits{MaxUnsent: 1000, MaxMailBytes: c.max}
			for {
				one, err := b.RegisterBroadcast(make([]byte, c.size), 2, &limits)
				if err == ErrFull {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				all = append(all, one)
			}
			if len(all) != c.want {
				t.Errorf("%d broadcasts of %d bytes were taken, want %d", len(all), c.size, c.want)
			}
			var n Counts
			if b.SetBroadcastGauges(&n); n[ActiveBroadcasts] != int64(c.want) || n[ActiveBroadcastBytes] != int64(c.want*c.size) || n[OldestBroadcastAge] <= 0 {
				t.Errorf("counted are %d, of %d bytes, for %d ns", n[ActiveBroadcasts], n[ActiveBroadcastBytes], n[OldestBroadcastAge])
			}
			for _, one := range all {
				one.MarkOneOwnerDone()
				if one.MarkOneOwnerDone(); b.ActiveCount() > 0 && one == all[len(all)-1] {
					t.Errorf("%d are under way in the end", b.ActiveCount())
				}
			}
			if _, err := b.RegisterBroadcast(make([]byte, 1001), 1, &limits); err != ErrTooLarge {
				t.Errorf("more than MaxUnsent: %v", err)
			}
			b.RejectNewBroadcasts()
			if _, err := b.RegisterBroadcast(nil, 1, &limits); err != ErrClosed {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}
