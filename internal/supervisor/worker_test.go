package supervisor

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseIdentity(t *testing.T) {
	want := identity{2, 4, []Address{{"tcp6", "[::1]:9000"}, {"tcp", ":1"}}, []int{1, 3}, true, []int{1, -1, 0}}
	if id, err := parseWorkerIdentity(want.String()); err != nil || !reflect.DeepEqual(id, want) {
		t.Errorf("%+v, %v; want %+v", id, err, want)
	}
	for _, bad := range []string{"", "1", "{}",
		`{"Index":2,"Processes":2,"Addrs":[{}],"Sockets":[1]}`, `{"Index":-1,"Processes":2,"Addrs":[{}],"Sockets":[1]}`,
		`{"Index":0,"Processes":2}`, `{"Index":0,"Processes":2,"Addrs":[{}]}`, `{"Index":0,"Processes":2,"Addrs":[{}],"Sockets":[0]}`,
		`{"Index":0,"Processes":2,"Addrs":[{}],"Sockets":[1],"More":1}`} {
		if _, err := parseWorkerIdentity(bad); err == nil || !strings.Contains(err.Error(), workerEnv) {
			t.Errorf("%q: %v, want an error that names the variable", bad, err)
		}
	}
}

func TestClaimListenersOfAnotherServer(t *testing.T) {
	w := &Worker{identity: identity{Processes: 2, Addrs: []Address{{"tcp", ":9000"}}}}
	for _, other := range []struct {
		where     []Address
		processes int
	}{
		{[]Address{{"tcp4", ":9000"}}, 2}, {[]Address{{"tcp", ":9001"}}, 2}, {[]Address{{"tcp", ":9000"}}, 3},
		{[]Address{{"tcp", ":9000"}, {"tcp", ":9001"}}, 2},
	} {
		_, err := w.ClaimListeners(other.where, other.processes)
		if err == nil || !strings.Contains(err.Error(), ":9000}] with 2 processes") {
			t.Errorf("%v: %v, want an error that says whose worker it is", other, err)
		}
	}
	w.claimed.Store(true)
	if _, err := w.ClaimListeners(w.Addrs, 2); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("taken twice: %v", err)
	}
}
