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

func newIdleRun() *loadRun {
	return newFakeRun(Config{Target: "a:1"}, &fakeEngine{})
}

func checkedWalls(t *testing.T, limits []Limit) (names []string) {
	t.Helper()
	for _, l := range limits {
		if l.Evidence == "" || l.Advice == "" {
			t.Errorf("a limit without evidence or advice: %+v", l)
		}
		names = append(names, l.Wall)
	}
	return names
}

// TestLimitsOf checks the thresholds of limits, and that too little data is no limit. A kernel
// counter is a limit only if it did harm.
func TestLimitsOf(t *testing.T) {
	late := func(count int64, p99 time.Duration) *Result {
		return &Result{Window: time.Second, Late: &Latency{Count: count, P99: p99}}
	}
	busy := func(window, used time.Duration) *Result {
		return &Result{Window: window, CPUs: 1, Generator: Usage{Process: sample.Process{User: used}}}
	}
	second := &Result{Window: time.Second}
	here, away, path := resolvedTarget{addr: netip.MustParseAddrPort("127.0.0.1:1")}, testTarget, resolvedTarget{path: "/x"}
	slow := &Result{Window: time.Second, Connect: Latency{Max: synRetransmitTime}}
	quick := &Result{Window: time.Second, Connect: Latency{Max: synRetransmitTime - 1}}
	kernel := map[string]int64{"ListenOverflows": 1, "nf_conntrack_drop": 1, "TCPMemoryPressures": 1}
	for _, test := range []struct {
		name    string
		of      *Result
		stalled time.Duration // programs, on this machine
		kernel  map[string]int64
		target  resolvedTarget
		failed  error
		want    []string
	}{
		{"busy", busy(minUsageWindow, minUsageWindow), 0, nil, here, nil, []string{"cpu"}},
		{"busy in a short window", busy(minUsageWindow-1, 9*time.Second), 0, nil, here, nil, nil},
		{"starved", second, 201 * time.Millisecond, nil, here, nil, []string{"cpu pressure"}},
		{"not quite starved", second, 200 * time.Millisecond, nil, here, nil, nil},
		{"starved in a short window", &Result{Window: minUsageWindow - 1}, minUsageWindow, nil, here, nil, nil},
		{"the kernel tells at the beginning only", second, -time.Hour, nil, here, nil, nil},
		{"late", late(minLateCount, veryLateP99), 0, nil, here, nil, []string{"late sends"}},
		{"few late", late(minLateCount-1, time.Second), 0, nil, here, nil, nil},
		{"counters, slow", slow, 0, kernel, here, nil, []string{"backlog", "conntrack", "socket memory"}},
		{"counters, failed", quick, 0, kernel, here, syscall.ETIMEDOUT, []string{"backlog", "conntrack", "socket memory"}},
		{"counters, no harm", quick, 0, kernel, here, nil, []string{"socket memory"}},
		{"counters, another machine's queue", slow, 0, kernel, away, nil, []string{"conntrack", "socket memory"}},
		{"counters, a unix socket's", slow, 0, kernel, path, nil, []string{"conntrack", "socket memory"}},
		{"aborted", quick, 0, map[string]int64{"TCPAbortOnMemory": 1}, here, nil, []string{"socket memory"}},
	} {
		r := newIdleRun()
		r.window, r.cpuStallTime, r.kernelCounters, r.dialer.targets = test.of.Window, test.stalled, test.kernel, []resolvedTarget{test.target}
		if test.failed != nil {
			r.generator.faults.recordConnectFailureUnlessEnded(test.failed)
		}
		if got := checkedWalls(t, r.findReachedLimits(test.of)); !slices.Equal(got, test.want) {
			t.Errorf("%s: limits %q, want %q", test.name, got, test.want)
		}
	}
}

// TestScarcity checks that the error is named with which the machine ran out of something.
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
		r := newIdleRun()
		for _, err := range test.errs {
			r.generator.faults.recordConnectFailureUnlessEnded(err)
		}
		got := r.findReachedLimits(&Result{})
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
