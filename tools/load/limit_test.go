package load

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tools/internal/sample"
)

// quietRun is one that nothing has happened in.
func quietRun() *run {
	return fakeRun(Config{Target: "a:1"}, &fakeEngine{})
}

// limitsOf are the walls of a result on a machine on which programs stalled.
func limitsOf(t *testing.T, of *Result, stalled time.Duration) (walls []string) {
	t.Helper()
	r := quietRun()
	r.window, r.stalled = of.Window, stalled
	for _, l := range r.limits(of) {
		if l.Evidence == "" || l.Advice == "" {
			t.Errorf("a limit without evidence or advice: %+v", l)
		}
		walls = append(walls, l.Wall)
	}
	return walls
}

// TestLimitsOf finds walls from where they begin, and not in what is too little to
// tell.
func TestLimitsOf(t *testing.T) {
	late := func(count int64, p99 time.Duration) *Result {
		return &Result{Window: time.Second, Late: &Latency{Count: count, P99: p99}}
	}
	busy := func(window, used time.Duration) *Result {
		return &Result{Window: window, CPUs: 1, Generator: Usage{Process: sample.Process{User: used}}}
	}
	for _, test := range []struct {
		name    string
		of      *Result
		stalled time.Duration
		want    []string
	}{
		{"nothing", &Result{Window: time.Second}, 0, nil},
		{"busy", busy(shortest, shortest), 0, []string{"cpu"}},
		{"busy in a short window", busy(shortest-1, 9*time.Second), 0, nil},
		{"starved", &Result{Window: time.Second}, 201 * time.Millisecond, []string{"cpu pressure"}},
		{"not quite starved", &Result{Window: time.Second}, 200 * time.Millisecond, nil},
		{"starved in a short window", &Result{Window: shortest - 1}, shortest, nil},
		{"the kernel tells at the beginning only", &Result{Window: time.Second}, -time.Hour, nil},
		{"late", late(leastLate, veryLateSend), 0, []string{"late sends"}},
		{"few late", late(leastLate-1, time.Second), 0, nil},
		{"all of them", &Result{Window: time.Second, CPUs: 1, Generator: Usage{Process: sample.Process{System: time.Second}}, Late: &Latency{Count: 1000, P99: time.Second}}, time.Second,
			[]string{"cpu", "cpu pressure", "late sends"}},
	} {
		if got := limitsOf(t, test.of, test.stalled); !slices.Equal(got, test.want) {
			t.Errorf("%s: limits %q, want %q", test.name, got, test.want)
		}
	}
}

// TestKernelLimits names what the kernel has counted, where it did harm.
func TestKernelLimits(t *testing.T) {
	here, away := []target{{addr: netip.MustParseAddrPort("127.0.0.1:1")}}, []target{testTarget}
	slow := &Result{Window: time.Second, Connect: Latency{Max: slowConnect}}
	quick := &Result{Window: time.Second, Connect: Latency{Max: slowConnect - 1}}
	all := map[string]int64{"ListenOverflows": 1, "nf_conntrack_drop": 1, "TCPMemoryPressures": 1}
	for _, test := range []struct {
		name    string
		kernel  map[string]int64
		targets []target
		of      *Result
		failed  error
		want    []string
	}{
		{"nothing", nil, here, slow, syscall.ETIMEDOUT, nil},
		{"slow", all, here, slow, nil, []string{"backlog", "conntrack", "socket memory"}},
		{"failed", all, here, quick, syscall.ETIMEDOUT, []string{"backlog", "conntrack", "socket memory"}},
		{"no harm", all, here, quick, nil, []string{"socket memory"}},
		{"another machine's queue", all, away, slow, nil, []string{"conntrack", "socket memory"}},
		{"a unix socket's", all, []target{{path: "/x"}}, slow, nil, []string{"conntrack", "socket memory"}},
		{"aborted", map[string]int64{"TCPAbortOnMemory": 1}, here, quick, nil, []string{"socket memory"}},
	} {
		r := quietRun()
		r.kernel, r.dialer.targets = test.kernel, test.targets
		if test.failed != nil {
			r.traffic.faults.refused(test.failed)
		}
		var got []string
		for _, l := range r.limits(test.of) {
			got = append(got, l.Wall)
			if l.Evidence == "" || l.Advice == "" {
				t.Errorf("%s: a limit without evidence or advice: %+v", test.name, l)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: limits %q, want %q", test.name, got, test.want)
		}
	}
}

// TestScarcity names the error by which the machine said that it had run out.
func TestScarcity(t *testing.T) {
	for _, test := range []struct {
		errs []error
		wall string
		says string
	}{
		{[]error{syscall.EMFILE}, "descriptors", "1 attempts to connect found no free descriptor (EMFILE)"},
		{[]error{syscall.ENFILE, syscall.EMFILE}, "descriptors", "2 attempts to connect found no free descriptor (EMFILE, ENFILE)"},
		{[]error{os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}, "ports", "no free port on 1 source addresses (EADDRNOTAVAIL)"},
		{[]error{syscall.ENOBUFS}, "memory", "(ENOBUFS)"},
		{[]error{syscall.ECONNREFUSED}, "", ""},
	} {
		r := quietRun()
		for _, err := range test.errs {
			r.traffic.faults.refused(err)
		}
		got := r.limits(&Result{})
		if test.wall == "" {
			if len(got) > 0 {
				t.Errorf("%v: limits %+v, want none", test.errs, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Wall != test.wall || !strings.Contains(got[0].Evidence, test.says) {
			t.Errorf("%v: limits %+v, want %s with %q", test.errs, got, test.wall, test.says)
		}
	}
}
