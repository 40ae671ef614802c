package main

import (
	"net/netip"
	"testing"
)

func TestParseSources(t *testing.T) {
	for text, want := range map[string]struct {
		first, last string
		count       int
	}{
		"10.0.0.1":              {"10.0.0.1", "10.0.0.1", 1},
		"10.0.0.1-10.0.0.20":    {"10.0.0.1", "10.0.0.20", 20},
		"10.0.0.250-10.0.1.5":   {"10.0.0.250", "10.0.1.5", 12},
		"10.0.0.7-10.0.0.7":     {"10.0.0.7", "10.0.0.7", 1},
		"10.0.0.0/24":           {"10.0.0.1", "10.0.0.254", 254},
		"10.0.0.77/24":          {"10.0.0.1", "10.0.0.254", 254},
		"10.0.0.0/30":           {"10.0.0.1", "10.0.0.2", 2},
		"10.0.0.0/31":           {"10.0.0.0", "10.0.0.1", 2},
		"10.0.0.1/32":           {"10.0.0.1", "10.0.0.1", 1},
		"10.0.0.0/16":           {"10.0.0.1", "10.0.255.254", 65_534},
		"fd00::/112":            {"fd00::", "fd00::ffff", 65_536},
		"fd00::1-fd00::ff":      {"fd00::1", "fd00::ff", 255},
		"255.255.255.255":       {"255.255.255.255", "255.255.255.255", 1},
		"ffff:ffff::ffff/128":   {"ffff:ffff::ffff", "ffff:ffff::ffff", 1},
		"fe80::1%eth0":          {"fe80::1%eth0", "fe80::1%eth0", 1},
		"255.255.255.254/31":    {"255.255.255.254", "255.255.255.255", 2},
		"fe80::1%a-fe80::2%a":   {"fe80::1%a", "fe80::2%a", 2},
		"0.0.0.0-0.0.255.255":   {"0.0.0.0", "0.0.255.255", 65_536},
		"::ffff:10.0.0.1":       {"::ffff:10.0.0.1", "::ffff:10.0.0.1", 1},
		"127.0.0.1-127.0.0.100": {"127.0.0.1", "127.0.0.100", 100},
	} {
		got, err := parseSources(text, maxSources)
		if err != nil || len(got) != want.count || got[0].String() != want.first || got[len(got)-1].String() != want.last {
			t.Errorf("%q: got %d addresses, %v; want %d from %s to %s", text, len(got), err, want.count, want.first, want.last)
		}
	}
	for _, text := range []string{
		"", "there", "10.0.0", "10.0.0.2-10.0.0.1", "10.0.0.1-", "-10.0.0.1", "10.0.0.1-fd00::1", "10.0.0.0/33", "10.0.0.0/", "10.0.0.1-10.0.0.2-10.0.0.3", "fe80::1%a-fe80::2%b", "10.0.0.1:80",
	} {
		if got, err := parseSources(text, maxSources); err != wantSource {
			t.Errorf("%q: got %d addresses, %v; want the error %q", text, len(got), err, wantSource)
		}
	}
	for _, text := range []string{"10.0.0.0/15", "0.0.0.0/0", "::/0", "fd00::/111", "0.0.0.0-0.1.0.0", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"} {
		if got, err := parseSources(text, maxSources); err != wantFewer {
			t.Errorf("%q: got %d addresses, %v; want the error %q", text, len(got), err, wantFewer)
		}
	}
	if got, err := parseSources("10.0.0.1-10.0.0.3", 2); err != wantFewer {
		t.Errorf("three where there is room for two: got %v, %v", got, err)
	}
}

// What is taken is a run of addresses, each after the other, within the bound.
func FuzzSources(f *testing.F) {
	for _, seed := range []string{"10.0.0.1", "10.0.0.1-10.0.0.20", "10.0.0.0/24", "fd00::/120", "fe80::1%a-fe80::2%a", "0.0.0.0/0", "-", "/", "::/0"} {
		f.Add(seed, 100)
	}
	f.Fuzz(func(t *testing.T, text string, room int) {
		room = min(max(room, 0), 1000)
		list, err := parseSources(text, room)
		if err != nil {
			return
		}
		if len(list) == 0 || len(list) > room {
			t.Fatalf("%q with room for %d: got %d addresses", text, room, len(list))
		}
		var last netip.Addr
		for _, a := range list {
			if !a.IsValid() || last.IsValid() && last.Next() != a {
				t.Fatalf("%q: %v follows %v", text, a, last)
			}
			last = a
		}
	})
}
