package doctor_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"

	"github.com/myriad-go/myriad/tools/doctor"
)

// What this machine holds, and the settings that make it hold more.
func Example() {
	facts, err := doctor.Read(0)
	if err != nil {
		log.Fatal(err)
	}
	report, err := doctor.Examine(facts, doctor.Plan{Connections: 100_000, Side: doctor.Server})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Holds, "connections; the first wall is", report.First)
	undo, err := doctor.Apply(context.Background(), os.Stdout, report.Changes())
	if err != nil {
		log.Print(err)
	}
	for _, c := range undo {
		fmt.Println("to undo:", c.Command())
	}
	if err := doctor.WriteSettings(os.Stdout, "sysctl", report); err != nil { // what makes them last
		log.Fatal(err)
	}
}

// Examine is asked of facts that were read elsewhere, or made up: nothing of this
// machine is looked at.
func ExampleExamine() {
	facts := &doctor.Facts{
		Sysctls: map[string]string{"net.ipv4.ip_local_port_range": "44620 48715"},
		Process: doctor.ProcessFacts{
			Nofile:  doctor.Rlimit{Soft: 20_000, Hard: 20_000},
			Memlock: doctor.Rlimit{Soft: -1, Hard: -1},
		},
	}
	report, err := doctor.Examine(facts, doctor.Plan{
		Connections: 10_000,
		Side:        doctor.Client,
		Sources:     []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Targets:     []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9000")},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.First, report.Holds)
	for _, c := range report.Changes() {
		fmt.Println(c.Command())
	}
	// Output:
	// ports 4096
	// sysctl -w net.ipv4.ip_local_port_range='16384 65535'
}
