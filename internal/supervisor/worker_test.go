package supervisor

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	w, err := parse("2/4 tcp6 [::1]:9000")
	if err != nil || w.Index != 2 || w.of != 4 || len(w.where) != 1 || w.where[0] != (Address{"tcp6", "[::1]:9000"}) {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err = parse("0/1 tcp :1 tcp6 :2"); err != nil || len(w.where) != 2 || w.where[1] != (Address{"tcp6", ":2"}) {
		t.Errorf("with two addresses: %+v, %v", w, err)
	}
	for _, bad := range []string{"", "1", "1/2", "1/2 tcp", "1/2 tcp :1 tcp", "2/2 tcp :1", "-1/2 tcp :1", "a/2 tcp :1", "1/b tcp :1", "1 tcp :1"} {
		if _, err := parse(bad); err == nil || !strings.Contains(err.Error(), environment) {
			t.Errorf("%q: %v, want an error that names the variable", bad, err)
		}
	}
}

func TestTakeOfAnother(t *testing.T) {
	w := &Worker{of: 2, where: []Address{{"tcp", ":9000"}}}
	for _, other := range []struct {
		where     []Address
		processes int
	}{
		{[]Address{{"tcp4", ":9000"}}, 2}, {[]Address{{"tcp", ":9001"}}, 2}, {[]Address{{"tcp", ":9000"}}, 3},
		{[]Address{{"tcp", ":9000"}, {"tcp", ":9001"}}, 2},
	} {
		_, err := w.Take(other.where, other.processes)
		if err == nil || !strings.Contains(err.Error(), ":9000 with 2 processes") {
			t.Errorf("%v: %v, want an error that says whose worker it is", other, err)
		}
	}
	w.taken.Store(true)
	if _, err := w.Take(w.where, 2); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("taken twice: %v", err)
	}
}
