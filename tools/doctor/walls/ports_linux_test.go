package walls

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/myriad-go/myriad/tools/doctor"
	"github.com/myriad-go/myriad/tools/load"
)

// A published experiment met 4095 connections from one source address with the ports
// 44620 to 48715. There are 4096: its server listened on one of them.
func TestPorts(t *testing.T) {
	for _, c := range []struct {
		name     string
		reserved string
		listener int // another one
		sources  int
		want     int
	}{
		{name: "three sources", sources: 3, want: 3 * 4096},
		{name: "a listener in the range", listener: 45000, sources: 1, want: 4095},
		{name: "reserved ports", reserved: "40000,45000-45099,48715", sources: 1, want: 4096 - 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestNamespace(t)
			w.setSysctl("net.ipv4.ip_local_port_range", "44620 48715")
			w.setSysctl("net.ipv4.ip_local_reserved_ports", c.reserved+"\n")
			if c.listener > 0 {
				w.startCommand("myriad", "serve", "--addr", fmt.Sprint("127.0.0.1:", c.listener)).WaitForOutput("serving echo on")
			}
			plan := doctor.Plan{Connections: c.want + 1000, Side: doctor.Client, Targets: []netip.AddrPort{netip.MustParseAddrPort(target)}}
			for i := range c.sources {
				plan.Sources = append(plan.Sources, netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + i)}))
			}
			server := w.startServe("--max-conns", "100000", "--model", "epoll")
			defer server.kill()
			holding := []string{"-n", strconv.Itoa(plan.Connections), "--duration", "100ms"}
			for _, s := range plan.Sources {
				holding = append(holding, "--src", s.String())
			}
			holding = append(holding, target)

			report := w.examineFirstWall("ports", 0, plan)
			got := w.runHold(holding...)
			checkClose(t, c.name, got.Connected, report.Holds)
			if got.Connected != c.want {
				t.Errorf("%d connections; want all %d ports", got.Connected, c.want)
			}
			named := slices.ContainsFunc(got.Limits, func(l load.Limit) bool { return l.Wall == "ports" })
			if got.ConnectErrors["cannot assign requested address"] != 1000 || !named {
				t.Errorf("errors %v, walls %v; want 1000 that found no address, and the wall", got.ConnectErrors, got.Limits)
			}

			w.applyChanges(report.Changes())
			w.checkMoved("ports", plan)
			if got = w.runHold(holding...); got.Connected != plan.Connections {
				t.Errorf("after what the doctor changed: %d connections, errors %v; want %d", got.Connected, got.ConnectErrors, plan.Connections)
			}
		})
	}
}
