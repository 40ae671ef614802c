package doctor

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// The memory of a connection is the sum of what each side takes.
func TestMemory(t *testing.T) {
	const floor = 2520 + 863 + 197 + 195 + 123
	for _, test := range []struct {
		name       string
		plan       Plan
		base, each int64
	}{
		{"epoll, server", Plan{Side: Server, Model: epoll}, processBase + epollBase, floor + 208 + loopConn},
		{"uring, client", Plan{Side: Client, Model: uring}, processBase + uringBase, floor + 288 + 129 + loopConn},
		{"both", Plan{}, 2 * (processBase + uringBase), 2*floor + 2*288 + 129 + 2*loopConn},
		{"goroutines", Plan{Side: Server, Model: goroutine}, processBase, floor + 208 + goroutineConn},
		{"the user's", Plan{Side: Server, Model: epoll, UserMemory: 1000}, processBase + epollBase, floor + 208 + 1000},
		{"unread", Plan{Side: Server, Model: epoll, Unread: 40000}, processBase + epollBase, floor + 208 + loopConn + 40000 + 2*832},
	} {
		test.plan.Connections = 100
		f := newTestFacts()
		checkHolds := func(what string, want int64) {
			t.Helper()
			r, err := Examine(f, test.plan)
			testkit.RequireNoError(t, err)
			if got := r.findWall("memory").Holds; got != want {
				t.Errorf("%s%s: %d connections, want %d of %d bytes", test.name, what, got, want, test.each)
			}
		}
		f.Meminfo.Free = f.Meminfo.Total/64 + test.base + 100*test.each // the machine keeps a 64th
		checkHolds("", 100)
		f.Meminfo.Free -= 10
		f.Meminfo.FilePages = 20 // half of them count
		checkHolds(", with pages of files", 100)
		f.Meminfo.FilePages--
		checkHolds(", one byte less", 99)
	}
}

// What the facts say of the kernel's caches counts, and a control group is charged
// for less.
func TestMemoryOfCaches(t *testing.T) {
	f := newTestFacts()
	f.Caches = map[string]float64{"TCP": 5000, "dentry": 1000, "filp": -1}
	x := newAnalysis(f, Plan{Connections: 1, Side: Server, Model: epoll})
	if got, want := x.kernelBytesPerConn(), int64(5000+863+1000+195+123+208); got != want {
		t.Errorf("%d bytes in the kernel, want %d", got, want)
	}
	f.Caches["TCPv6"] = 6000
	x.p.Targets = mustParseTargets("[::1]:9000")
	if got, want := x.kernelBytesPerConn(), int64(6000+863+1000+195+123+208); got != want {
		t.Errorf("%d bytes in the kernel for IPv6, want %d", got, want)
	}
	x.p.Targets = nil
	f.Caches = nil
	each := (2520+863+197+195+123+208)*chargedShare/1000 + int64(loopConn)
	f.Cgroup.Memory.Max, f.Cgroup.Memory.Used = 1<<30, 1<<30-processBase-epollBase-1000*each
	r, err := Examine(f, x.p)
	testkit.RequireNoError(t, err)
	if got := r.findWall("cgroup-memory").Holds; got != 1000 {
		t.Errorf("%d connections in the group, want 1000 of %d bytes", got, each)
	}
}

func TestPlanValidate(t *testing.T) {
	for want, p := range map[string]Plan{
		"Plan.Connections is 0; expected 1 to 1,073,741,824":                                   {},
		"Plan.Connections is 1,073,741,825; expected 1 to 1,073,741,824":                       {Connections: 1<<30 + 1},
		`Plan.Side is "left"; expected server, client or both`:                                 {Connections: 1, Side: "left"},
		`Plan.Model is "iocp"; expected auto, goroutine, epoll or uring`:                       {Connections: 1, Model: "iocp"},
		"Plan.Processes is 1,025; expected 0 to 1,024":                                         {Connections: 1, Processes: 1025},
		"Plan.Backlog is -1; expected 0 to 2,147,483,647":                                      {Connections: 1, Backlog: -1},
		"Plan.Burst is -1; expected 0 to 1,073,741,824":                                        {Connections: 1, Burst: -1},
		"Plan.Unread is -1; expected 0 to 1,073,741,824":                                       {Connections: 1, Unread: -1},
		"Plan.UserMemory is -1; expected 0 to 1,073,741,824":                                   {Connections: 1, UserMemory: -1},
		"Plan.Closing is -1; expected 0 to 1,073,741,824":                                      {Connections: 1, Closing: -1},
		"Plan.Sources has 65,537 addresses; expected 0 to 65,536":                              {Connections: 1, Sources: make([]netip.Addr, 65537)},
		"Plan.Targets has 1,025 addresses; expected 0 to 1,024":                                {Connections: 1, Targets: make([]netip.AddrPort, 1025)},
		"Plan.Targets contains 10.0.0.1:0; expected an address and a port":                     {Connections: 1, Targets: mustParseTargets("10.0.0.1:0")},
		"Plan.Targets contains 0.0.0.0:9000; expected an address and a port":                   {Connections: 1, Targets: mustParseTargets("0.0.0.0:9000")},
		"Plan.Targets contains [::1]:1 and 127.0.0.1:1; expected addresses of the same family": {Connections: 1, Targets: mustParseTargets("127.0.0.1:1", "[::1]:1")},
		"Plan.Sources contains invalid IP; expected a local address":                           {Connections: 1, Sources: make([]netip.Addr, 1)},
		"Plan.Sources contains ::1, which cannot reach 127.0.0.1:9000; expected an a":          {Connections: 1, Sources: mustParseAddrs("::1")},
	} {
		if _, err := Examine(newTestFacts(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := Examine(nil, Plan{Connections: 1}); err == nil {
		t.Error("no facts: got no error")
	}
}

// examineAndCheck examines, and says what is wrong with the report.
func examineAndCheck(f *Facts, p Plan) (*Report, error) {
	r, err := Examine(f, p)
	if err != nil {
		return nil, err
	}
	if !slices.IsSortedFunc(r.Walls, compareByHolds) {
		return nil, fmt.Errorf("the walls are not sorted")
	}
	names := make(map[string]bool)
	for _, w := range r.Walls {
		exceeded := w.Exceeded(p.Connections)
		switch {
		case w.Holds < 0:
			return nil, fmt.Errorf("%s holds %d", w.Name, w.Holds)
		case !w.Soft && w.Holds < r.Holds:
			return nil, fmt.Errorf("%s holds %d, less than the report's %d", w.Name, w.Holds, r.Holds)
		case names[w.Name]:
			return nil, fmt.Errorf("%s is there twice", w.Name)
		case w.Name == "" || w.Side == "" || w.What == "" || w.Present == "" || w.Effect == "" || !strings.HasPrefix(w.Source, "https://"):
			return nil, fmt.Errorf("something isn't said: %+v", w)
		case exceeded && (w.Needs == "" || len(w.Changes) == 0 && w.Advice == ""):
			return nil, fmt.Errorf("nothing is said to help: %+v", w)
		case len(w.Changes) > 0 && w.Advice != "":
			return nil, fmt.Errorf("advice beside changes: %+v", w)
		case !exceeded && (w.Needs != "" || len(w.Changes) > 0 || w.Advice != ""):
			return nil, fmt.Errorf("help where none is needed: %+v", w)
		}
		names[w.Name] = true
	}
	return r, r.WriteText(&strings.Builder{})
}

// factsAfter are the facts after changes: what they say is what is read then.
func factsAfter(t *testing.T, f *Facts, changes []Change) *Facts {
	t.Helper()
	text, err := json.Marshal(struct {
		Sysctls    map[string]string
		Interfaces []Interface
	}{f.Sysctls, f.Interfaces})
	testkit.RequireNoError(t, err)
	after := *f
	after.Sysctls, after.Interfaces = nil, nil
	testkit.RequireNoError(t, json.Unmarshal(text, &after))
	for _, c := range changes {
		n, _ := strconv.ParseInt(c.To, 10, 64)
		switch c.Kind {
		case Sysctl:
			checkNotLowered(t, c)
			after.Sysctls[c.Name] = c.To
		case Nofile:
			if top, err := strconv.ParseUint(after.Sysctls["fs.nr_open"], 10, 64); err == nil && uint64(n) > top {
				t.Errorf("nofile becomes %d before fs.nr_open, which is %d", n, top)
			}
			after.Process.Nofile = Rlimit{n, n}
		case Memlock:
			after.Process.Memlock = Rlimit{n, max(n, f.Process.Memlock.Hard)}
		case Link, Address:
			for i := range after.Interfaces {
				if on := &after.Interfaces[i]; on.Name != c.Name {
				} else if c.Kind == Link {
					on.Up = true
				} else {
					on.Addrs = append(on.Addrs, netip.MustParsePrefix(c.To))
				}
			}
		case Cgroup:
			checkNotLowered(t, c)
			switch c.Name {
			case "/m":
				after.Cgroup.Memory.Max = n
			case "/s":
				after.Cgroup.Sockets.Max = n
			case "/p":
				after.Cgroup.Tasks.Max = n
			}
		default:
			t.Errorf("a change of the kind %s", c.Kind)
		}
	}
	return &after
}

func checkNotLowered(t *testing.T, c Change) {
	t.Helper()
	from, to := strings.Fields(c.From), strings.Fields(c.To)
	for i := range min(len(from), len(to)) {
		m, err := strconv.ParseInt(from[i], 10, 64)
		n, otherErr := strconv.ParseInt(to[i], 10, 64)
		lowered := err == nil && otherErr == nil && n < m
		if c.Name == rangeName && i == 0 {
			lowered = n > m
		}
		// Of these, numbers are choices and not amounts.
		if lowered && c.Name != reuseName {
			t.Errorf("%s is lowered from %q to %q", c.Name, c.From, c.To)
		}
	}
}

// Ports on which somebody listens are kept out of what is added to the range.
func TestReserve(t *testing.T) {
	plan := Plan{Connections: 45000, Sources: mustParseAddrs("127.0.0.1"), Targets: mustParseTargets("127.0.0.1:20000")}
	for _, test := range []struct {
		name, reserved string
		listening      []uint16
		want           string
	}{
		{"the plan's own", "", nil, "20000"},
		{"it is reserved", "19999-20001", nil, ""},
		{"others", "30000", []uint16{5432, 16384, 27017, 27018, 40000, 61000}, "16384,20000,27017-27018,30000,61000"},
	} {
		r := mustExamine(t, plan, func(f *Facts) {
			f.Sysctls[reservedName], f.Sockets.Ports = test.reserved, test.listening
		})
		got := ""
		for _, c := range r.Changes() {
			if c.Name == reservedName {
				got = c.To
			}
		}
		if got != test.want {
			t.Errorf("%s: %q is to be reserved, want %q", test.name, got, test.want)
		}
	}
}
