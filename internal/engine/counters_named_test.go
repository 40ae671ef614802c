package engine

import "testing"

// TestNamed checks that each counter survives the transfer to another process under its own name.
func TestNamed(t *testing.T) {
	var n, got Counts
	names := make(map[string]bool)
	for what := range counters {
		n[what] = int64(what) + 1
		if what < gauges {
			continue
		}
		if name := what.name(); name == "" || names[name] {
			t.Errorf("counter %d has the name %q; want one of its own", what, name)
		} else {
			names[name] = true
		}
	}
	named := n.NonzeroCountersByName()
	named["unknown"] = 1
	got.AddByName(named)
	if want := n.WithoutGauges(); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	got.AddByName(named)
	if want := 2 * n[Accepted]; got[Accepted] != want {
		t.Errorf("added twice: %d, want %d", got[Accepted], want)
	}
	if named = new(Counts).NonzeroCountersByName(); len(named) > 0 {
		t.Errorf("nothing counted: %v", named)
	}
}
