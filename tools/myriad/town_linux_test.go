package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/tools/internal/faults"
)

// town is machines, each in a network namespace, with a cable each to a switch in one more.
type town struct {
	t        *testing.T
	machines map[string]*machine
}

type machine struct {
	town    *town
	name    string
	address string
	network *faults.Namespace
}

// newTown makes machines with names, or skips the test where that is not allowed.
func newTown(t *testing.T, names ...string) *town {
	t.Helper()
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("this test needs %s, of iproute2: %v", tool, err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("this test needs root, for network namespaces")
	}
	w := &town{t, make(map[string]*machine)}
	w.space("switch")
	w.run("ip -n %s link add br0 type bridge", w.named("switch"))
	w.run("ip -n %s link set br0 up", w.named("switch"))
	for i, name := range names {
		w.space(name)
		w.run("ip -n %s link add %s type veth peer name eth0 netns %s", w.named("switch"), name, w.named(name))
		w.run("ip -n %s link set %s master br0 up", w.named("switch"), name)
		m := &machine{town: w, name: name, address: fmt.Sprintf("10.99.0.%d", i+1)}
		w.run("ip -n %s addr add %s/24 dev eth0", w.named(name), m.address)
		w.run("ip -n %s link set eth0 up", w.named(name))
		w.run("ip -n %s link set lo up", w.named(name))
		network, err := faults.OpenNamespace("/run/netns/" + w.named(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { network.Close() })
		m.network = network
		w.machines[name] = m
	}
	return w
}

func (w *town) named(name string) string { return fmt.Sprintf("myriad-%d-%s", os.Getpid(), name) }

func (w *town) space(name string) {
	w.t.Helper()
	w.run("ip netns add %s", w.named(name))
	w.t.Cleanup(func() { w.run("ip netns del %s", w.named(name)) })
}

func (w *town) run(format string, args ...any) {
	w.t.Helper()
	words := strings.Fields(fmt.Sprintf(format, args...))
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v: %s", words, err, out)
	}
}

// cable cuts a machine off, or has it back.
func (m *machine) cable(whole bool) {
	m.town.t.Helper()
	m.town.run("ip -n %s link set %s %s", m.town.named("switch"), m.name, map[bool]string{true: "up", false: "down"}[whole])
}

// slow has what goes to a machine come at a rate, such as 1mbit; "" is as fast as it can.
func (m *machine) slow(rate string) {
	m.town.t.Helper()
	if rate == "" {
		m.town.run("tc -n %s qdisc del dev %s root", m.town.named("switch"), m.name)
		return
	}
	m.town.run("tc -n %s qdisc add dev %s root tbf rate %s burst 32k latency 400ms", m.town.named("switch"), m.name, rate)
}

// on has a command run on a machine.
func (m *machine) on(cmd *exec.Cmd) *exec.Cmd {
	m.town.t.Helper()
	ip, err := exec.LookPath("ip")
	if err != nil {
		m.town.t.Fatal(err)
	}
	cmd.Args = append([]string{"ip", "netns", "exec", m.town.named(m.name), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = ip
	return cmd
}

// dial connects from a machine.
func (m *machine) dial(_ context.Context, network, addr string) (c net.Conn, err error) {
	err = m.network.Do(func() (err error) {
		c, err = net.DialTimeout(network, addr, patience)
		return err
	})
	return c, err
}

// client is one of HTTP on a machine.
func (m *machine) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: m.dial, DisableKeepAlives: true}, Timeout: patience}
}

// asNATS has the test's executable be a server of NATS: its value is the address of the machine
// and those of all.
const asNATS = "MYRIAD_TEST_NATS"

func init() {
	if addrs := strings.Fields(os.Getenv(asNATS)); len(addrs) > 0 {
		if err := serveNATS(addrs[0], addrs[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func serveNATS(addr string, all []string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	c := &natsd.Cluster{Addr: addr + ":6222", Secret: "s3cret"}
	for _, other := range all {
		c.Join = append(c.Join, other+":6222")
	}
	s, err := natsd.Start(natsd.Config{Addr: addr + ":4222", Cluster: c, MaxPending: 4 << 20})
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Printf("myriad: serving nats on %s\n", s.Addr())
	select {
	case <-stop:
		return nil
	case <-time.After(2 * patience):
		return errors.New("nobody has ended it")
	}
}
